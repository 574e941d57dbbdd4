"""An experiment in one TOML file: a network trained without labels, a linear SVM on its features, one result.

lambda = 2^i/n is chosen on a part of the training set held out, then the linear model is fitted on all of it; the test
set is looked at once, at the end.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sckn.data.cifar10 import LabelledImages, read_cifar10
from sckn.features import FeatureTransform
from sckn.images import local_whitening
from sckn.linear import best_exponent, error_rate, fit_linear, one_vs_all, validation_errors
from sckn.network import CKN, NetworkConfig
from sckn.settings import one_of, real_number, whole_number
from sckn.training.unsupervised import encode, fit_unsupervised

__all__ = ["Experiment", "SeedReport", "run_experiment"]

Decorrelation = Literal["features", "channels"]
Precision = Literal["highest", "high"]

READERS: dict[str, Callable[[Path], tuple[LabelledImages, LabelledImages]]] = {"cifar10": read_cifar10}


@dataclass(frozen=True)
class Experiment:
    """What a TOML file in experiments/ says.

    Parameters
    ----------
    name: of the result. dataset: "cifar10". network: its layers.
    seeds: one run each.
    whitening_power: of the local whitening of each image; 0 leaves images as they are.
    patches, iterations: of k-means, for each layer.
    decorrelation: of the features before the linear model, all together ("features"), or at each position by itself
        ("channels"), for maps too large for the former.
    feature_norm: features are scaled by one number so that their mean norm is this, which gives lambda its meaning.
    lambda_exponents: i of the lambda = 2^i/n tried. validation: part of the training set held out for the choice.
    tolerance: of the linear solver. batch_size: images encoded at a time.
    precision: of convolutions and products on a GPU, "highest" (fp32) or "high" (TF32).
    """

    name: str
    dataset: str
    network: NetworkConfig
    seeds: tuple[int, ...] = (0,)
    whitening_power: float = 0.25
    patches: int = 100_000
    iterations: int = 20
    decorrelation: Decorrelation = "features"
    feature_norm: float = 10.0
    lambda_exponents: tuple[int, ...] = tuple(range(-4, 5))
    validation: float = 0.2
    tolerance: float = 1e-4
    batch_size: int = 256
    precision: Precision = "high"

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and re.fullmatch(r"[\w.-]*\w[\w.-]*", self.name)):
            raise ValueError(f"name must consist of letters, digits, '.', '_' and '-', got {self.name!r}")
        if not isinstance(self.network, NetworkConfig):
            raise ValueError(f"network must be a NetworkConfig, got {self.network!r}")
        for name in ("seeds", "lambda_exponents"):
            if not isinstance(getattr(self, name), tuple) or not getattr(self, name):
                raise ValueError(f"{name} must be a list of one or more whole numbers, got {getattr(self, name)!r}")
        checked = {
            "dataset": one_of("dataset", self.dataset, tuple(READERS)),
            "seeds": tuple(whole_number("each of seeds", seed, least=0) for seed in self.seeds),
            "whitening_power": real_number("whitening_power", self.whitening_power, least=0),
            "patches": whole_number("patches", self.patches),
            "iterations": whole_number("iterations", self.iterations),
            "decorrelation": one_of("decorrelation", self.decorrelation, get_args(Decorrelation)),
            "feature_norm": real_number("feature_norm", self.feature_norm, above=0),
            "lambda_exponents": tuple(whole_number("each of lambda_exponents", i, least=-99) for i in self.lambda_exponents),
            "validation": real_number("validation", self.validation, above=0, below=1),
            "tolerance": real_number("tolerance", self.tolerance, above=0),
            "batch_size": whole_number("batch_size", self.batch_size),
            "precision": one_of("precision", self.precision, get_args(Precision)),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read an experiment; a mistake in the file is named."""
        try:
            content = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}); expected an experiment in TOML") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid TOML: {error}") from None
        known = {field.name for field in fields(cls)}
        unknown, missing = sorted(set(content) - known), sorted({"name", "dataset", "network"} - set(content))
        if unknown or missing:
            problem = f"has unknown settings: {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
            raise ValueError(f"{path} {problem}; the settings are {', '.join(sorted(known))}")
        for name in ("seeds", "lambda_exponents"):
            if name in content:
                content[name] = tuple(content[name]) if isinstance(content[name], list) else content[name]
        try:
            return cls(**{**content, "network": NetworkConfig.from_dict(content["network"])})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """All settings, defaults included."""
        return {**asdict(self), "network": self.network.to_dict()}


@dataclass(frozen=True)
class SeedReport:
    """One run: errors in percent, seconds of each phase, peak memory of the accelerator in GiB if there is one.

    `gradient` tells how well the final linear model converged (see `LinearModel`).
    """

    seed: int
    test_error: float
    train_error: float
    validation_errors: dict[int, float]
    lambda_exponent: int
    gradient: float
    seconds: dict[str, float]
    peak_gib: float | None


def run_experiment(experiment: Experiment, folder: Path, device: torch.device, *, test: bool = True) -> list[SeedReport]:
    """Run every seed. With `test` False only the validation errors are found (the test error is NaN)."""
    started = perf_counter()
    train, held_out = READERS[experiment.dataset](folder)
    if not 0 < _kept(experiment, len(train.labels)) < len(train.labels):
        raise ValueError(f"validation = {experiment.validation} leaves no image on one side of {len(train.labels)}; change it")
    if train.images.shape[1] != experiment.network.in_channels:
        channels = train.images.shape[1]
        raise ValueError(
            f"the images have {channels} channels, but the network's in_channels is {experiment.network.in_channels}"
        )
    images, test_images = _prepared(experiment, train, device), _prepared(experiment, held_out, device) if test else None
    prepared = perf_counter() - started
    with _precision(experiment.precision):
        return [
            _run_seed(experiment, seed, (images, train.labels), (test_images, held_out.labels), prepared)
            for seed in tqdm(experiment.seeds, desc=experiment.name, unit="seed", disable=None)
        ]


def _kept(experiment: Experiment, count: int) -> int:
    """How many of the training images are not held out."""
    return count - round(experiment.validation * count)


@contextmanager
def _precision(precision: Precision) -> Iterator[None]:
    """Convolutions and products of fp32 numbers on a GPU in TF32 or not; afterwards as before."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # pyright: ignore[reportAttributeAccessIssue]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32" if precision == "high" else "ieee"
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def _prepared(experiment: Experiment, data: LabelledImages, device: torch.device) -> Tensor:
    images = torch.from_numpy(data.images).to(device)
    return local_whitening(images, power=experiment.whitening_power) if experiment.whitening_power else images.float() / 255


def _run_seed(
    experiment: Experiment,
    seed: int,
    train: tuple[Tensor, np.ndarray],
    test: tuple[Tensor | None, np.ndarray],
    prepared: float,
) -> SeedReport:
    images, device = train[0], train[0].device
    clock = _Clock(device)
    torch.manual_seed(seed)
    # one shuffle at the start makes the held-out part a slice, so that features need not be copied
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    labels = torch.from_numpy(train[1])[order].to(device)
    classes = int(train[1].max()) + 1

    network = CKN(experiment.network).to(device)
    fit_unsupervised(
        network,
        images,
        patches=experiment.patches,
        iterations=experiment.iterations,
        batch_size=experiment.batch_size,
        seed=seed,
    )
    clock.lap("k-means")
    features = encode(network, images[order.to(device)], batch_size=experiment.batch_size, progress=True)
    clock.lap("encoding")
    group = features.shape[1] if experiment.decorrelation == "features" else experiment.network.layers[-1].filters
    transform = FeatureTransform.fit(features, group, experiment.feature_norm)
    features = transform(features)
    clock.lap("decorrelation")

    kept = _kept(experiment, len(features))
    errors = validation_errors(features, labels, kept, experiment.lambda_exponents, tolerance=experiment.tolerance)
    best = best_exponent(errors)
    clock.lap("choice of lambda")
    test_error = train_error = gradient = float("nan")
    if test[0] is not None:
        targets = one_vs_all(labels, classes)
        model = fit_linear(features, targets, 2.0**best / len(features), tolerance=experiment.tolerance)
        weights, gradient = model.weights, model.gradient
        train_error = error_rate(features @ weights, labels)
        clock.lap("final fit")
        test_features = transform(encode(network, test[0], batch_size=experiment.batch_size))
        test_error = error_rate(test_features @ weights, torch.from_numpy(test[1]).to(device))
        clock.lap("test")
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return SeedReport(seed, test_error, train_error, errors, best, gradient, {"preparation": prepared, **clock.seconds}, peak)


class _Clock:
    """Seconds of each phase, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, {}
        self.last = perf_counter()

    def lap(self, phase: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = perf_counter()
        self.seconds[phase], self.last = round(now - self.last, 2), now
