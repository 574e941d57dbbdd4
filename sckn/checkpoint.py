"""Checkpoints: one .safetensors file with the weights, and in its metadata, as JSON, the config and all else a model carries.

Loading reads numbers and JSON and executes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from sckn.classifier import ImageClassifier
from sckn.files import written_whole
from sckn.model import KernelModel
from sckn.network import CKN, NetworkConfig
from sckn.settings import true_or_false
from sckn.shipped import SHIPPED, UPSCALERS, find_shipped
from sckn.superres.upscaler import Upscaler, UpscalerConfig

__all__ = [
    "CheckpointError",
    "Content",
    "Model",
    "as_classifier",
    "load",
    "load_classifier",
    "load_network",
    "load_upscaler",
    "read_tensors",
    "save",
    "write_tensors",
]

Model = CKN | KernelModel | ImageClassifier | Upscaler
KINDS = tuple(kind.__name__ for kind in get_args(Model))

FORMAT = "sckn"
FORMAT_VERSION = 1
# What JSON and the config classes raise at a description that was damaged or is not known here.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class CheckpointError(ValueError):
    """The file is not a checkpoint that this version can read."""


def save(model: Model, path: str | Path, *, half: bool = False) -> Path:
    """Write a network, alone, with its linear model, or as a classifier or an upscaler; a file that was there is replaced only
    once the new one is whole.

    With `half` filters take two bytes a number instead of four; `load` gives them back in fp32, rounded.
    """
    weighted = model.model if isinstance(model, ImageClassifier | Upscaler) else model
    network = weighted.network if isinstance(weighted, KernelModel) else weighted
    config = json.dumps(network.config.to_dict())
    NetworkConfig.from_dict(json.loads(config))  # refuses a kernel that could not be loaded again
    kind, description = "CKN", {"config": config}
    if isinstance(weighted, KernelModel):
        kind, description["per_pixel"] = "KernelModel", json.dumps(weighted.per_pixel)
    if isinstance(model, ImageClassifier):
        kind, description["classifier"] = "ImageClassifier", json.dumps(model.description(), allow_nan=False)
    if isinstance(model, Upscaler):
        kind, description["upscaler"] = "Upscaler", json.dumps(asdict(model.config))
    tensors = weighted.state_dict()
    if half:
        description["half"] = "true"
        tensors.update(_halved(weighted))
    return write_tensors(path, kind, tensors, description)


def _halved(model: CKN | KernelModel) -> dict[str, Tensor]:
    """The filters, most of the numbers, in half precision: their length is 1. The linear model is as large as features are
    small, so that half precision may not hold it, and a moving frame must not be rounded."""
    halves = {name: weight.detach().half() for name, weight in model.named_parameters() if name.endswith("filters")}
    if not all(bool(torch.isfinite(half).all()) for half in halves.values()):
        raise ValueError("the model has filters too large for half precision; save it without half=True")
    return halves


def load(source: str | Path, device: torch.device | str = "cpu") -> Model:
    """Read what `save` wrote, in eval mode, with the precision it was saved in (fp32 where that was half).

    `source` is a file, or the name of a model that comes with sckn, such as "cifar10".
    """
    path = _model_file(source)
    expected = f"a checkpoint written by sckn.save, or the name of a model ({', '.join(SHIPPED)})"
    kind, tensors, metadata = read_tensors(path, KINDS, expected=expected)
    try:
        config = NetworkConfig.from_dict(json.loads(metadata["config"]))
        per_pixel = kind != "CKN" and true_or_false("per_pixel", json.loads(metadata["per_pixel"]))
        description = json.loads(metadata["classifier"]) if kind == "ImageClassifier" else {}
        upscaler = UpscalerConfig(**json.loads(metadata["upscaler"])) if kind == "Upscaler" else None
        half = true_or_false("half", json.loads(metadata.get("half", "false")))
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
    if half:
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
    model.load_state_dict(tensors, assign=True)
    if isinstance(model, KernelModel) and kind == "ImageClassifier":
        try:
            model = ImageClassifier.described(model, description)
        except UNREADABLE as error:
            raise CheckpointError(f"the description of the classifier in {path} cannot be read: {error}") from None
    if upscaler is not None and isinstance(model, KernelModel):
        try:
            model = Upscaler(model, upscaler)
        except ValueError as error:
            raise CheckpointError(f"{path} holds an upscaler that cannot work: {error}") from None
    return model.to(device).eval()


def _model_file(source: str | Path) -> Path:
    """A file comes before a model of that name, which comes before a folder: that may hold data of the same name."""
    path, name = Path(source), str(source)
    if path.is_file():
        return path
    shipped = find_shipped(name)
    if shipped is None and name in SHIPPED:
        raise CheckpointError(f"the model {name} is not here; {SHIPPED[name]}")
    return shipped or path


def load_classifier(source: str | Path, device: torch.device | str = "cpu") -> ImageClassifier:
    """Read a classifier; `load` for where nothing else will do."""
    return as_classifier(load(source, device), source)


def as_classifier(model: Model, source: str | Path) -> ImageClassifier:
    """What was read from `source`, if it is a classifier."""
    if not isinstance(model, ImageClassifier):
        raise CheckpointError(
            f"{source} holds {_kind(model)}, which knows no classes; expected the classifier.safetensors that "
            "sckn train leaves, or an ImageClassifier written by sckn.save"
        )
    return model


def load_network(source: str | Path, device: torch.device | str = "cpu") -> CKN:
    """Read a network that was saved alone; `load` for where nothing else will do."""
    model = load(source, device)
    if not isinstance(model, CKN):
        inside = ".model.network" if isinstance(model, ImageClassifier | Upscaler) else ".network"
        raise CheckpointError(
            f"{source} holds a network with its linear model, but the network alone is needed here; "
            f"read it with sckn.load and give the {inside} of what that returns"
        )
    return model


def load_upscaler(source: str | Path, device: torch.device | str = "cpu") -> Upscaler:
    """Read an upscaler; `load` for where nothing else will do."""
    model = load(source, device)
    if not isinstance(model, Upscaler):
        raise CheckpointError(
            f"{source} holds {_kind(model)}, but an upscaler is needed here; give the name of one, such as "
            f"{UPSCALERS[0]}, or the model.safetensors that its training has left"
        )
    return model


def _kind(model: Model) -> str:
    """In words, for someone who has a file and not its Python object."""
    match model:
        case ImageClassifier():
            return "a classifier"
        case Upscaler():
            return "an upscaler"
        case CKN():
            return "a network without a linear model"
        case _:
            return "a network with a linear model alone"


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
