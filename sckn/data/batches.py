"""One way to walk through any source of images in batches (B, c, H, W) of bounded size."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

__all__ = ["ImageSource", "floating_point", "image_batches"]


class Dataset(Protocol):
    """A data set in the manner of torch.utils.data.Dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


# A tensor or array (n, c, H, W), also memory-mapped; the path of a .npy file with one; a data set with len() and [i]
# that gives images (c, H, W), alone or first in a tuple; or an iterable of batches, alone or first in a tuple.
ImageSource = Tensor | np.ndarray | str | Path | Dataset | Iterable[Any]


def image_batches(source: ImageSource, batch_size: int, device: torch.device | str = "cpu") -> Iterator[Tensor]:
    """Batches of at most `batch_size` images on `device`: floating point as they come, bytes scaled to [0, 1].

    Only one batch is held at a time, so memory does not grow with the data set.
    """
    for part in _pieces(source, batch_size):
        images = _as_tensor(part)
        if images.dim() != 4:
            raise ValueError(f"expected a batch of images of shape (B, c, H, W), got {tuple(images.shape)}")
        for piece in images.split(batch_size):
            piece = floating_point(piece.to(device))
            if not bool(torch.isfinite(piece).all()):
                raise ValueError("the images hold NaN or infinity; clean them first")
            yield piece


def floating_point(images: Tensor) -> Tensor:
    """Bytes scaled to [0, 1] in float32, floating point as it is."""
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point():
        raise ValueError(f"expected images in floating point or in bytes (uint8), got {images.dtype}")
    return images


def _pieces(source: ImageSource, batch_size: int) -> Iterator[Any]:
    if isinstance(source, (str, Path)):
        source = _open_array(Path(source))
    if isinstance(source, (Tensor, np.ndarray)):
        if source.ndim != 4:
            raise ValueError(f"expected images of shape (n, c, H, W), got {tuple(source.shape)}")
        for start in range(0, len(source), batch_size):
            yield source[start : start + batch_size]
    elif _is_indexed(source):
        data: Any = source
        for start in range(0, len(data), batch_size):
            yield torch.stack([_as_tensor(_first(data[i])) for i in range(start, min(start + batch_size, len(data)))])
    elif isinstance(source, Iterable):
        for batch in source:
            yield _first(batch)
    else:
        raise TypeError(
            f"expected images as a tensor, an array, a .npy file, a data set or batches, got {type(source).__name__}"
        )


def _is_indexed(source: Any) -> bool:
    """Whether the source is a data set of single images rather than an iterable of batches."""
    batches = isinstance(source, list | tuple | IterableDataset)
    return not batches and hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _open_array(path: Path) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; expected a .npy file of images (n, c, H, W)") from None
    except (OSError, ValueError, EOFError, TokenError) as error:
        raise ValueError(f"{path} is not a complete .npy file of images (n, c, H, W): {error}") from None
    return array


def _first(item: Any) -> Any:
    """The image of an (image, label) pair."""
    return item[0] if isinstance(item, tuple | list) else item


def _as_tensor(images: Any) -> Tensor:
    if isinstance(images, Tensor):
        return images
    if isinstance(images, np.ndarray):
        return torch.from_numpy(np.array(images))  # a copy: a memory map may be read-only
    raise TypeError(f"expected images as tensors or arrays, got {type(images).__name__}")
