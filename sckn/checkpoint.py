"""Checkpoints: one .safetensors file with the weights, and the config as JSON in its metadata.

Loading reads numbers and JSON and executes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from sckn.files import written_whole
from sckn.model import KernelModel
from sckn.network import CKN, NetworkConfig
from sckn.settings import true_or_false
from sckn.superres.upscaler import Upscaler, UpscalerConfig

__all__ = ["CheckpointError", "Content", "load", "load_network", "load_upscaler", "read_tensors", "save", "write_tensors"]

FORMAT = "sckn"
FORMAT_VERSION = 1
# What JSON and the config classes raise at a description that was damaged or is not known here.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class CheckpointError(ValueError):
    """The file is not a checkpoint that this version can read."""


def save(model: CKN | KernelModel | Upscaler, path: str | Path) -> Path:
    """Write a network, alone, with its linear model, or as an upscaler; a file that was there is replaced only once the new
    one is whole."""
    kind, description = type(model).__name__, {}
    if isinstance(model, Upscaler):
        description["upscaler"] = json.dumps(asdict(model.config))
        model = model.model
    if isinstance(model, KernelModel):
        description["per_pixel"] = json.dumps(model.per_pixel)
    network = model.network if isinstance(model, KernelModel) else model
    description["config"] = json.dumps(network.config.to_dict())
    NetworkConfig.from_dict(json.loads(description["config"]))  # refuses a kernel that could not be loaded again
    return write_tensors(path, kind, model.state_dict(), description)


def load(source: str | Path, device: torch.device | str = "cpu") -> CKN | KernelModel | Upscaler:
    """Read what `save` wrote, in eval mode, with the precision it was saved in."""
    path = Path(source)
    kind, tensors, metadata = read_tensors(path, ("CKN", "KernelModel", "Upscaler"))
    try:
        config = NetworkConfig.from_dict(json.loads(metadata["config"]))
        per_pixel = kind != "CKN" and true_or_false("per_pixel", json.loads(metadata["per_pixel"]))
        upscaler = UpscalerConfig(**json.loads(metadata["upscaler"])) if kind == "Upscaler" else None
    except UNREADABLE as error:
        raise CheckpointError(f"the description of the network in {path} cannot be read: {error}") from None
    with torch.device("meta"):  # no memory is taken for a config that asks for more than the file holds
        model = CKN(config)
        if kind != "CKN":
            model = KernelModel(model, torch.empty(_weights_shape(tensors, config, per_pixel)), per_pixel=per_pixel)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}:
        raise CheckpointError(f"{path} holds weights that do not fit its own config; copy or download it again")
    if not all(tensor.is_floating_point() and bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise CheckpointError(f"{path} holds weights that are no finite numbers; train or download the model again")
    model.load_state_dict(tensors, assign=True)
    if upscaler is not None and isinstance(model, KernelModel):
        try:
            model = Upscaler(model, upscaler)
        except ValueError as error:
            raise CheckpointError(f"{path} holds an upscaler that cannot work: {error}") from None
    return model.to(device).eval()


def load_network(source: str | Path, device: torch.device | str = "cpu") -> CKN:
    """Read a network that was saved alone; `load` for where nothing else will do."""
    model = load(source, device)
    if not isinstance(model, CKN):
        raise CheckpointError(
            f"{source} holds a network with its linear model, but the network alone is needed here; "
            "read it with sckn.load and give the .network of what that returns"
        )
    return model


def load_upscaler(source: str | Path, device: torch.device | str = "cpu") -> Upscaler:
    """Read an upscaler; `load` for where nothing else will do."""
    model = load(source, device)
    if not isinstance(model, Upscaler):
        raise CheckpointError(
            f"{source} holds a {type(model).__name__}, but an Upscaler is needed here; train one on photographs"
        )
    return model


def _weights_shape(tensors: dict[str, Tensor], config: NetworkConfig, per_pixel: bool) -> tuple[int, int]:
    """That of the linear model in a file if it fits the network, else one that no file has."""
    shape = tuple(tensors["weights"].shape) if "weights" in tensors else ()
    filters = config.layers[-1].filters
    if len(shape) != 2 or min(shape) < 1 or (shape[0] != filters if per_pixel else shape[0] % filters):
        return 0, 0
    return shape


class Content(NamedTuple):
    """What a file of `write_tensors` holds; its metadata are JSON, each by itself."""

    kind: str
    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def write_tensors(path: str | Path, kind: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
    """Write tensors of any device and type; a file that was there is replaced only once the new one is whole."""
    path = Path(path)
    header = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "kind": kind, **metadata}
    # copied in any case: the format has no place for tensors that share memory, as two that are still equal may do
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    with written_whole(path) as temporary:
        # not save_file, which makes a temporary file of its own, whose name only it knows
        temporary.write_bytes(to_bytes(copies, header))
    return path


def read_tensors(
    path: str | Path,
    kinds: Sequence[str],
    *,
    expected: str = "a checkpoint written by sckn.save",
    remedy: str = "copy or download it again",
) -> Content:
    """Read what `write_tensors` wrote, of one of these kinds; `expected` and `remedy` are for the sentence of an error."""
    path = Path(path)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise CheckpointError(f"{path} {problem}; expected {expected}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            kind = _checked_kind(path, metadata, kinds, expected)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole .safetensors file ({error}); {remedy}") from None
    return Content(kind, tensors, metadata)


def _checked_kind(path: Path, metadata: dict[str, str], kinds: Sequence[str], expected: str) -> str:
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by sckn; expected {expected}")
    version = metadata.get("format_version", "")
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {version or 'unknown'}, and this version of sckn reads format {FORMAT_VERSION}; upgrade sckn"
        )
    kind = metadata.get("kind", "")
    if kind not in kinds:
        raise CheckpointError(f"{path} holds a {kind!r}, not a {' or a '.join(kinds)}; expected {expected}")
    return kind
