"""Checkpoints: what was saved comes back; what is damaged, foreign or newer is named, and nothing is executed."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sckn import CKN, CheckpointError, LayerConfig, NetworkConfig, kernels, load, save

CONFIG = NetworkConfig(
    2,
    (
        LayerConfig(4, 3, subsampling=2.0**0.5, kernel=kernels.Exponential(3.0, learnable=True)),
        LayerConfig(5, 1, kernel=kernels.ArcCosine(), inverse_root="newton_schulz"),
        LayerConfig(3, 2, padding=False, kernel=kernels.Polynomial(3, 0.5), gradient="paper", epsilon=0.01),
    ),
)


def tensors_and_metadata(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(CKN(CONFIG), tmp_path / "network.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_was_saved_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    network = CKN(CONFIG).to(dtype)
    with torch.no_grad():
        network.layers[0].log_alpha += 0.5  # pyright: ignore
    again = load(save(network, tmp_path / "folder" / "network.safetensors"))
    assert again.config == CONFIG
    assert not again.training
    for (name, old), (name_again, new) in zip(network.named_parameters(), again.named_parameters(), strict=True):
        assert name == name_again
        assert new.dtype == dtype
        assert new.requires_grad
        assert torch.equal(old, new)
    images = torch.rand(2, 2, 9, 9, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(network.eval()(images), again(images))


def test_a_loaded_network_trains(saved: Path) -> None:
    network = load(saved).train()
    network(torch.rand(2, 2, 9, 9)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())


def test_every_truncation_is_named(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    short = tmp_path / "short.safetensors"
    for length in {*range(0, len(data), 37), len(data) - 1}:
        short.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"short\.safetensors .*copy or download it again"):
            load(short)


def test_damaged_bytes_are_read_right_or_named(saved: Path, tmp_path: Path) -> None:
    """A flipped byte in the weights may be another weight; anywhere else it must not end in another kind of error."""
    data = saved.read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    generator = torch.Generator().manual_seed(0)
    named = 0
    for place in torch.randint(len(data), (300,), generator=generator).tolist():
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        try:
            load(damaged)
        except CheckpointError:
            named += 1
    assert named > 100


def test_foreign_files_are_named(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign)
    with pytest.raises(CheckpointError, match="was not written by sckn"):
        load(foreign)
    text = tmp_path / "text.safetensors"
    text.write_text("not a checkpoint")
    with pytest.raises(CheckpointError, match="not a whole"):
        load(text)
    with pytest.raises(CheckpointError, match="does not exist"):
        load(tmp_path / "nowhere.safetensors")
    with pytest.raises(CheckpointError, match="is a folder"):
        load(tmp_path)


@dataclass(frozen=True)
class Cubic(kernels.Kernel):
    """A kernel that sckn does not know."""

    def __call__(self, u: torch.Tensor) -> torch.Tensor:
        return u**3

    def derivative(self, u: torch.Tensor) -> torch.Tensor:
        return 3 * u**2


def test_a_network_that_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    network = CKN(NetworkConfig(1, (LayerConfig(2, 3, kernel=Cubic()),)))
    with pytest.raises(ValueError, match="unknown kernel 'Cubic'"):
        save(network, tmp_path / "network.safetensors")
    assert not list(tmp_path.iterdir())


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_a_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "network.safetensors"
    path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(CheckpointError):
        load(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format_version": "2"}, "format 2, and this version of sckn reads format 1; upgrade"),
        ({"format_version": "x"}, "upgrade"),
        ({"kind": "Upscaler"}, "holds a 'Upscaler'"),
        ({"config": "{"}, "cannot be read"),
        ({"config": "[]"}, "cannot be read"),
        ({"config": "[" * 100_000}, "cannot be read"),
        ({"config": '{"in_channels": 2}'}, "lacks 'layers'"),
        ({"config": json.dumps({**CONFIG.to_dict(), "surprise": 1})}, "surprise"),
        ({"config": json.dumps(NetworkConfig(2, (LayerConfig(10**9, 99),)).to_dict())}, "do not fit its own config"),
        ({"config": json.dumps(replace(CONFIG, in_channels=3).to_dict())}, "do not fit its own config"),
    ],
)
def test_metadata_that_do_not_fit_are_named(saved: Path, tmp_path: Path, changes: dict[str, str], complaint: str) -> None:
    tensors, metadata = tensors_and_metadata(saved)
    path = tmp_path / "changed.safetensors"
    save_file(tensors, path, {**metadata, **changes})
    with pytest.raises(CheckpointError, match=r"changed\.safetensors") as caught:
        load(path)
    assert complaint in str(caught.value)


def test_weights_that_are_no_numbers_are_named(saved: Path, tmp_path: Path) -> None:
    tensors, metadata = tensors_and_metadata(saved)
    tensors["layers.1.filters"][0] = torch.nan
    save_file(tensors, tmp_path / "nan.safetensors", metadata)
    with pytest.raises(CheckpointError, match="no finite numbers"):
        load(tmp_path / "nan.safetensors")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk."""
    path = tmp_path / "network.safetensors"
    program = f"""
import resource, signal, torch
from sckn import CKN, LayerConfig, NetworkConfig, save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
save(CKN(NetworkConfig(1, (LayerConfig(2, 3),))), {str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    save(CKN(NetworkConfig(1, (LayerConfig(500, 3),))), {str(path)!r})
except OSError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "cannot be written" in told
    assert load(path).config.layers[0].filters == 2
    assert [file.name for file in tmp_path.iterdir()] == ["network.safetensors"]
