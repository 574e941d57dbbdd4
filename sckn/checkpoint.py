"""Checkpoints: one .safetensors file with the weights, and the config as JSON in its metadata.

Loading reads numbers and JSON and executes nothing.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sckn.files import written_whole
from sckn.network import CKN, NetworkConfig

__all__ = ["CheckpointError", "load", "save"]

FORMAT = "sckn"
FORMAT_VERSION = 1


class CheckpointError(ValueError):
    """The file is not a checkpoint that this version can read."""


def save(network: CKN, path: str | Path) -> Path:
    """Write a network to `path`; a file that was there is replaced only once the new one is whole."""
    path = Path(path)
    config = json.dumps(network.config.to_dict())
    NetworkConfig.from_dict(json.loads(config))  # refuses a kernel that could not be loaded again
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "kind": "CKN",
        "config": config,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    with written_whole(path) as temporary:
        try:
            save_file(tensors, temporary, metadata)
        except SafetensorError as error:
            raise OSError(None, str(error)) from None
    return path


def load(source: str | Path, device: torch.device | str = "cpu") -> CKN:
    """Read a network that `save` wrote, in eval mode, with the precision it was saved in."""
    path = Path(source)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise CheckpointError(f"{path} {problem}; expected a checkpoint written by sckn.save")
    try:
        with safe_open(path, framework="pt") as file:
            config = _config(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole .safetensors file ({error}); copy or download it again") from None
    with torch.device("meta"):  # no memory is taken for a config that asks for more than the file holds
        network = CKN(config)
    expected = network.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in expected.items()}:
        raise CheckpointError(f"{path} holds weights that do not fit its own config; copy or download it again")
    if not all(tensor.is_floating_point() and bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise CheckpointError(f"{path} holds weights that are no finite numbers; train or download the model again")
    network.load_state_dict(tensors, assign=True)
    return network.to(device).eval()


def _config(path: Path, metadata: dict[str, str]) -> NetworkConfig:
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by sckn; expected a checkpoint written by sckn.save")
    version = metadata.get("format_version", "")
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {version or 'unknown'}, and this version of sckn reads format {FORMAT_VERSION}; upgrade sckn"
        )
    try:
        if metadata.get("kind") != "CKN":
            raise ValueError(f"it holds a {metadata.get('kind')!r}, not a CKN")
        return NetworkConfig.from_dict(json.loads(metadata["config"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the description of the network in {path} cannot be read: {error}") from None
