"""Every source of images gives the same images, in bounded batches; what is no image is refused with a reason."""

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sckn.data.batches import image_batches

COUNT = 11


class Labelled(Dataset[Any]):
    """A data set as torchvision's are: an image and its label; every n-th image may be an array."""

    def __init__(self, images: Tensor, *, arrays: bool = False) -> None:
        self.images, self.arrays = images, arrays

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor | np.ndarray, int]:
        if not 0 <= index < len(self.images):
            raise IndexError(index)
        return (self.images[index].numpy() if self.arrays else self.images[index]), index % 10


class Bare(Labelled):
    """A data set of images alone."""

    def __getitem__(self, index: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.images[index]


def saved(images: Tensor, folder: Path) -> Path:
    path = folder / "images.npy"
    np.save(path, images.numpy())
    return path


def unlabelled(images: Tensor, size: int) -> Iterator[Tensor]:
    yield from images.split(size)


SOURCES: dict[str, Callable[[Tensor, Path], Any]] = {
    "tensor": lambda images, folder: images,
    "array": lambda images, folder: images.numpy(),
    "reversed array": lambda images, folder: np.flip(np.flip(images.numpy(), 0).copy(), 0),
    "array in another order": lambda images, folder: np.asfortranarray(images.numpy()),
    "memory map": lambda images, folder: np.load(saved(images, folder), mmap_mode="r"),
    "path": lambda images, folder: saved(images, folder),
    "path as text": lambda images, folder: str(saved(images, folder)),
    "data set": lambda images, folder: Labelled(images),
    "data set of arrays": lambda images, folder: Labelled(images, arrays=True),
    "data set without labels": lambda images, folder: Bare(images),
    "tensor data set": lambda images, folder: TensorDataset(images, torch.arange(len(images))),
    "loader": lambda images, folder: DataLoader(Labelled(images), batch_size=4),
    "loader without labels": lambda images, folder: DataLoader(Bare(images), batch_size=4),
    "list of batches": lambda images, folder: list(images.split(5)),
    "tuple of batches": lambda images, folder: images.split(5),
    "list of arrays": lambda images, folder: [batch.numpy() for batch in images.split(5)],
    "list of labelled batches": lambda images, folder: [(batch, torch.zeros(len(batch))) for batch in images.split(5)],
    "generator": lambda images, folder: unlabelled(images, 3),
    "one large batch": lambda images, folder: iter([images]),
}


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_images(source: str, batch_size: int, tmp_path: Path) -> None:
    images = torch.rand(COUNT, 3, 6, 5)
    batches = list(image_batches(SOURCES[source](images, tmp_path), batch_size))
    assert all(batch.dim() == 4 and 1 <= len(batch) <= batch_size for batch in batches)
    assert torch.equal(torch.cat(batches), images)


@pytest.mark.parametrize("source", SOURCES)
def test_bytes_are_scaled(source: str, tmp_path: Path) -> None:
    images = torch.randint(0, 256, (COUNT, 3, 6, 5), dtype=torch.uint8)
    images[0, 0, 0, :2] = torch.tensor([0, 255], dtype=torch.uint8)
    result = torch.cat(list(image_batches(SOURCES[source](images, tmp_path), 4)))
    assert result.dtype == torch.float32
    np.testing.assert_array_equal(result.numpy(), images.numpy().astype(np.float32) / np.float32(255))
    assert (float(result.min()), float(result.max())) == (0.0, 1.0)


@pytest.mark.parametrize("source", ["tensor", "array", "path", "data set", "generator"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floating_point_comes_as_it_is(source: str, dtype: torch.dtype, tmp_path: Path) -> None:
    images = (1000 * torch.randn(COUNT, 1, 4, 4, dtype=torch.float64)).to(dtype)
    result = torch.cat(list(image_batches(SOURCES[source](images, tmp_path), 4)))
    assert result.dtype == dtype
    assert torch.equal(result, images)


@pytest.mark.parametrize("source", ["tensor", "array", "path", "data set"])
def test_all_batches_but_the_last_are_full(source: str, tmp_path: Path) -> None:
    images = torch.rand(COUNT, 3, 6, 5)
    assert [len(batch) for batch in image_batches(SOURCES[source](images, tmp_path), 4)] == [4, 4, 3]


@pytest.mark.parametrize("source", ["tensor", "array", "path", "data set", "loader", "list of batches"])
def test_no_images_give_no_batches(source: str, tmp_path: Path) -> None:
    images = torch.rand(COUNT, 3, 6, 5)[:0]
    assert sum(len(batch) for batch in image_batches(SOURCES[source](images, tmp_path), 4)) == 0


@pytest.mark.parametrize("source", ["tensor", "array", "memory map", "path", "data set", "loader", "list of batches"])
def test_a_source_can_be_walked_through_again(source: str, tmp_path: Path) -> None:
    images = torch.rand(COUNT, 3, 6, 5)
    walked = SOURCES[source](images, tmp_path)
    for _ in range(2):
        assert torch.equal(torch.cat(list(image_batches(walked, 4))), images)


def test_a_generator_is_not_read_ahead() -> None:
    read = []

    def batches() -> Iterator[Tensor]:
        for index in range(5):
            read.append(index)
            yield torch.rand(2, 1, 4, 4)

    walk = image_batches(batches(), 2)
    assert read == []
    next(walk)
    assert read == [0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("source", ["tensor", "array", "path", "data set", "loader", "list of batches", "generator"])
def test_nan_and_infinity_are_refused(source: str, bad: float, tmp_path: Path) -> None:
    images = torch.rand(COUNT, 3, 6, 5)
    images[-1, 2, 3, 4] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        list(image_batches(SOURCES[source](images, tmp_path), 4))


@pytest.mark.parametrize("shape", [(COUNT,), (COUNT, 6), (COUNT, 6, 5), (COUNT, 1, 3, 6, 5)])
@pytest.mark.parametrize("source", ["tensor", "array", "path", "data set", "loader", "list of batches", "generator"])
def test_other_dimensions_are_refused(source: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected .*\([Bn], c, H, W\), got \("):
        list(image_batches(SOURCES[source](torch.rand(shape), tmp_path), 4))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.bool, torch.complex64])
@pytest.mark.parametrize("source", ["tensor", "array", "path", "loader", "generator"])
def test_other_types_are_refused(source: str, dtype: torch.dtype, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"floating point or in bytes \(uint8\), got torch\."):
        list(image_batches(SOURCES[source](torch.zeros(COUNT, 3, 6, 5, dtype=dtype), tmp_path), 4))


@pytest.mark.parametrize("source", [7, None, [["not", "images"]], [7], ["text"]])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(TypeError, match="expected images as"):
        list(image_batches(source, 4))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.npy does not exist; expected a \.npy file"):
        list(image_batches(tmp_path / "none.npy", 4))


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a complete \.npy file"):
        list(image_batches(tmp_path, 4))


@pytest.mark.parametrize("left", [0, 3, 6, 9, 40, 127, 128, 500, -1])
def test_a_truncated_file_is_named(left: int, tmp_path: Path) -> None:
    path = saved(torch.rand(COUNT, 3, 6, 5), tmp_path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"images\.npy is not a complete \.npy file"):
        list(image_batches(path, 4))


def test_a_spoilt_header_is_named(tmp_path: Path) -> None:
    """Any one byte of the header wrong: the images come out, other images of the same bytes do, or the file is named."""
    path = saved(torch.rand(4, 1, 2, 2), tmp_path)
    whole = path.read_bytes()
    reasons = []
    for position in range(128):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x15]) + whole[position + 1 :])
        try:
            batches = list(image_batches(path, 4))
        except ValueError as error:
            reasons.append(str(error))
        else:
            assert all(batch.dim() == 4 for batch in batches)
    assert len(reasons) > 20
    assert all("images" in reason for reason in reasons)


class Marker:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_is_not_executed(tmp_path: Path, plain: bool) -> None:
    path, trace = tmp_path / "images.npy", tmp_path / "executed"
    objects = np.array([Marker(trace)], dtype=object)
    if plain:
        path.write_bytes(objects.dumps())  # a pickle without the header of a .npy file
    else:
        np.save(path, objects, allow_pickle=True)
    np.load(path, allow_pickle=True)
    assert trace.exists()  # the trap works
    trace.unlink()
    with pytest.raises(ValueError, match=r"images\.npy is not a complete \.npy file"):
        list(image_batches(path, 4))
    assert not trace.exists()


@pytest.mark.parametrize("name", ["images.npz", "images.npy"])
def test_an_archive_of_arrays_is_named(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", images=np.zeros((4, 1, 2, 2)))
    path = (tmp_path / "images.npz").rename(tmp_path / name)
    with pytest.raises(ValueError, match=r"images\.np. is not a complete \.npy file"):
        list(image_batches(path, 4))


def test_a_file_is_not_read_whole(tmp_path: Path) -> None:
    """Numpy's memory while walking through 48 MB stays below four batches of 196 kB."""
    path, batch_size = tmp_path / "images.npy", 16
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(4096, 3, 32, 32)).flush()  # sparse: zeros
    total = 0
    tracemalloc.start()
    try:
        for batch in image_batches(path, batch_size):
            total += len(batch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 4096
    assert batch_size * 3 * 32 * 32 * 4 < peak < 4 * batch_size * 3 * 32 * 32 * 4  # numpy reports to tracemalloc


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_batches_arrive_on_the_device() -> None:
    images = torch.randint(0, 256, (COUNT, 3, 6, 5), dtype=torch.uint8)
    batches = list(image_batches(images, 4, "cuda"))
    assert all(batch.device.type == "cuda" for batch in batches)
    torch.testing.assert_close(torch.cat(batches).cpu(), images.float() / 255, rtol=1e-7, atol=0)
