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
from sckn.checkpoint import load_network, read_tensors, write_tensors
from sckn.model import KernelModel

CONFIG = NetworkConfig(
    2,
    (
        LayerConfig(4, 3, subsampling=2.0**0.5, kernel=kernels.Exponential(3.0, learnable=True)),
        LayerConfig(5, 3, kernel=kernels.CentredExponential(2.0, learnable=True)),
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


def kernel_model(per_pixel: bool = False) -> KernelModel:
    """Of images of 9 x 9, whose last map is 5 x 5."""
    d = 3 if per_pixel else 3 * 5 * 5
    return KernelModel(CKN(CONFIG), torch.randn(d, 4), torch.randn(4), per_pixel=per_pixel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_was_saved_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    network = CKN(CONFIG).to(dtype)
    with torch.no_grad():
        for layer in network.kernel_layers[:2]:
            layer.log_alpha += 0.5  # pyright: ignore
    again = load(save(network, tmp_path / "folder" / "network.safetensors"))
    assert isinstance(again, CKN)
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
        ({"kind": "Classifier"}, "holds a 'Classifier'"),
        ({"config": "{"}, "cannot be read"),
        ({"config": "[]"}, "cannot be read"),
        ({"config": "[" * 100_000}, "cannot be read"),
        ({"config": '{"in_channels": 2}'}, "the network lacks layers; the settings are"),
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
import resource
from sckn import CKN, LayerConfig, NetworkConfig, save
save(CKN(NetworkConfig(1, (LayerConfig(2, 3),))), {str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    save(CKN(NetworkConfig(1, (LayerConfig(500, 3),))), {str(path)!r})
except OSError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.endswith(f"{path} cannot be written (File too large); the file that was there is intact\n")
    assert load_network(path).config.layers[0].filters == 2
    assert [file.name for file in tmp_path.iterdir()] == ["network.safetensors"]


@pytest.mark.parametrize("per_pixel", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_comes_back_with_its_network(tmp_path: Path, dtype: torch.dtype, per_pixel: bool) -> None:
    model = kernel_model(per_pixel).to(dtype)
    again = load(save(model, tmp_path / "model.safetensors"))
    assert isinstance(again, KernelModel)
    assert again.network.config == CONFIG
    assert again.per_pixel is per_pixel
    assert not again.training
    assert not again.network.training
    for (name, old), (name_again, new) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert name == name_again
        assert new.dtype == dtype
        assert new.requires_grad
        assert torch.equal(old, new)
    images = torch.rand(2, 2, 9, 9, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(model.eval()(images), again(images))
    assert again(images).shape == ((2, 4, 5, 5) if per_pixel else (2, 4))


def test_a_loaded_model_trains(tmp_path: Path) -> None:
    model = load(save(kernel_model(), tmp_path / "model.safetensors")).train()
    model(torch.rand(2, 2, 9, 9)).square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert {"weights", "bias"} < {name for name, _ in model.named_parameters()}


def test_a_model_is_not_taken_for_its_network(tmp_path: Path) -> None:
    path = save(kernel_model(), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors holds a network with its linear model.*\.network"):
        load_network(path)
    assert load_network(save(kernel_model().network, path)).config == CONFIG


def test_every_truncation_of_a_model_is_named(tmp_path: Path) -> None:
    data = save(kernel_model(), tmp_path / "model.safetensors").read_bytes()
    short = tmp_path / "short.safetensors"
    for length in {*range(0, len(data), 97), len(data) - 1}:
        short.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"short\.safetensors .*copy or download it again"):
            load(short)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"config": "{"}, "cannot be read"),
        ({"config": json.dumps(replace(CONFIG, in_channels=3).to_dict())}, "do not fit its own config"),
        ({"config": json.dumps(NetworkConfig(2, (LayerConfig(10**9, 99),)).to_dict())}, "do not fit its own config"),
        ({"per_pixel": "true"}, "do not fit its own config"),  # its weights are for whole maps
        ({"per_pixel": "1"}, "per_pixel must be true or false"),
        ({"per_pixel": "null"}, "per_pixel must be true or false"),
        ({"per_pixel": "tru"}, "cannot be read"),
        ({"kind": "CKN"}, "do not fit its own config"),
    ],
)
def test_metadata_that_do_not_fit_a_model_are_named(tmp_path: Path, changes: dict[str, str], complaint: str) -> None:
    tensors, metadata = tensors_and_metadata(save(kernel_model(), tmp_path / "model.safetensors"))
    path = tmp_path / "changed.safetensors"
    save_file(tensors, path, {**metadata, **changes})
    with pytest.raises(CheckpointError, match=r"changed\.safetensors") as caught:
        load(path)
    assert complaint in str(caught.value)


def test_a_description_that_lacks_a_part_is_named(tmp_path: Path) -> None:
    for kind, lacking in (("KernelModel", "per_pixel"), ("KernelModel", "config"), ("CKN", "config")):
        model = kernel_model() if kind == "KernelModel" else CKN(CONFIG)
        tensors, metadata = tensors_and_metadata(save(model, tmp_path / "model.safetensors"))
        del metadata[lacking]
        save_file(tensors, tmp_path / "lacking.safetensors", metadata)
        with pytest.raises(CheckpointError, match=f"cannot be read: '{lacking}'"):
            load(tmp_path / "lacking.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("weights", torch.zeros(76, 4)),  # not a whole number of filters
        ("weights", torch.zeros(75, 5)),  # not the outputs of the bias
        ("weights", torch.zeros(75)),
        ("weights", torch.zeros(0, 4)),
        ("bias", torch.zeros(4, 1)),
        ("bias", torch.zeros(3)),
        ("surprise", torch.zeros(3)),
    ],
)
def test_a_linear_model_that_does_not_fit_is_named(tmp_path: Path, name: str, tensor: torch.Tensor) -> None:
    path = save(kernel_model(), tmp_path / "model.safetensors")
    tensors, metadata = tensors_and_metadata(path)
    save_file({**tensors, name: tensor}, path, metadata)
    with pytest.raises(CheckpointError, match="do not fit its own config"):
        load(path)


@pytest.mark.parametrize("missing", ["weights", "bias", "network.layers.0.filters"])
def test_a_model_that_lacks_a_part_is_named(tmp_path: Path, missing: str) -> None:
    path = save(kernel_model(), tmp_path / "model.safetensors")
    tensors, metadata = tensors_and_metadata(path)
    del tensors[missing]
    save_file(tensors, path, metadata)
    with pytest.raises(CheckpointError, match="do not fit its own config"):
        load(path)


@pytest.mark.parametrize("name", ["weights", "bias", "network.layers.1.filters"])
def test_a_model_that_is_no_numbers_is_named(tmp_path: Path, name: str) -> None:
    path = save(kernel_model(), tmp_path / "model.safetensors")
    for bad in (torch.inf, torch.nan):
        tensors, metadata = tensors_and_metadata(path)
        tensors[name] = torch.full_like(tensors[name], bad)
        save_file(tensors, path, metadata)
        with pytest.raises(CheckpointError, match="no finite numbers"):
            load(path)


def test_tensors_that_share_memory_are_written_each_by_itself(tmp_path: Path) -> None:
    one = torch.arange(12.0).view(3, 4)
    path = write_tensors(tmp_path / "a.safetensors", "Test", {"a": one, "b": one, "c": one[1:], "d": one.T}, {"note": '"x"'})
    content = read_tensors(path, ["Other", "Test"])
    assert content.kind == "Test"
    assert content.metadata["note"] == '"x"'
    assert {name: tuple(tensor.shape) for name, tensor in content.tensors.items()} == {
        "a": (3, 4),
        "b": (3, 4),
        "c": (2, 4),
        "d": (4, 3),
    }
    assert torch.equal(content.tensors["b"], one)
    assert torch.equal(content.tensors["c"], one[1:])
    assert torch.equal(content.tensors["d"], one.T)


def test_another_kind_is_named_with_what_was_expected(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "a.safetensors", "Test", {"a": torch.zeros(1)}, {})
    with pytest.raises(CheckpointError, match="holds a 'Test', not a Cat or a Dog; expected an animal"):
        read_tensors(path, ["Cat", "Dog"], expected="an animal")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"not a whole .*; feed it"):
        read_tensors(path, ["Test"], remedy="feed it")


def test_writing_makes_no_file_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed leaves only files whose names are known."""
    seen: set[str] = set()
    write = Path.write_bytes

    def watched(self: Path, data: bytes) -> int:
        written = write(self, data)
        seen.update(file.name for file in tmp_path.iterdir())
        return written

    monkeypatch.setattr(Path, "write_bytes", watched)
    save(CKN(CONFIG), tmp_path / "network.safetensors")
    assert len(seen) == 1
    assert next(iter(seen)).startswith(".network.safetensors.")
    assert [file.name for file in tmp_path.iterdir()] == ["network.safetensors"]
