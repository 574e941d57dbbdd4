"""An experiment in one TOML file: a data set, a network, and how it is trained."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from sckn.data.cifar import read_cifar10, read_cifar100
from sckn.data.folder import read_folder
from sckn.data.labelled import LabelledImages
from sckn.data.svhn import read_svhn
from sckn.network import NetworkConfig
from sckn.precision import Precision
from sckn.preparation import Preparation
from sckn.settings import file_name, one_of, real_number, true_or_false, whole_number
from sckn.training.recipe import Recipe
from sckn.training.toml_file import checked_settings

__all__ = ["Experiment", "SeedReport", "class_names", "peak_memory", "prepared_images", "read_data", "read_dataset"]

Decorrelation = Literal["features", "channels"]

READERS: dict[str, Callable[..., tuple[LabelledImages, LabelledImages]]] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "svhn": read_svhn,
    "folder": read_folder,
}
# Settings that belong to one data set, and are given to its reader.
DATASET_SETTINGS = {"svhn": ("extra",), "folder": ("image_size",)}


@dataclass(frozen=True)
class Experiment:
    """What a TOML file in experiments/ says.

    Parameters
    ----------
    name: of the result. network: its layers.
    dataset: "cifar10", "cifar100", "svhn", or "folder" for any folder with one sub-folder a class.
    recipe: how the network is trained with labels; without it, it is trained without labels, and a linear SVM on top.
    seeds: one run each.
    whitening_power: of the local whitening of each image; 0 leaves images as they are.
    patches, iterations: of k-means, for each layer. kmeans_images: how many images the patches come from; None is all.
    lambda_exponents: i of the lambda = 2^i/n tried. validation: part of the training set held out for the choice.
    selection_epochs: epochs of the runs in which lambda is chosen, where they are to be shorter than the final one.
    batch_size: images encoded at a time.

    Without a recipe:

    decorrelation: of the features before the linear model, all together ("features"), or at each position by itself
        ("channels"), for maps too large for the former.
    feature_norm: features are scaled by one number so that their mean norm is this, which gives lambda its meaning.
    tolerance: of the linear solver.
    precision: of convolutions and products on a GPU, "highest" (fp32), "high" (TF32) or "medium" (bf16).

    extra: of SVHN, whether the extra images are added to the training set.
    image_size: of a folder, the width and height to which all images are resized.
    """

    name: str
    dataset: str
    network: NetworkConfig
    recipe: Recipe | None = None
    seeds: tuple[int, ...] = (0,)
    whitening_power: float = 0.25
    patches: int = 100_000
    iterations: int = 20
    kmeans_images: int | None = None
    decorrelation: Decorrelation = "features"
    feature_norm: float = 10.0
    lambda_exponents: tuple[int, ...] = tuple(range(-4, 5))
    selection_epochs: int | None = None
    validation: float = 0.2
    tolerance: float = 1e-4
    batch_size: int = 256
    precision: Precision = "high"
    extra: bool = False
    image_size: int = 32

    def __post_init__(self) -> None:
        if not isinstance(self.network, NetworkConfig):
            raise ValueError(f"network must be a NetworkConfig, got {self.network!r}")
        if not isinstance(self.recipe, Recipe | None):
            raise ValueError(f"recipe must be a Recipe or nothing, got {self.recipe!r}")
        for name in ("seeds", "lambda_exponents"):
            if not isinstance(getattr(self, name), tuple) or not getattr(self, name):
                raise ValueError(f"{name} must be a list of one or more whole numbers, got {getattr(self, name)!r}")
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} must differ from each other, got {list(getattr(self, name))}")
        checked = {
            "name": file_name("name", self.name),
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
            "extra": true_or_false("extra", self.extra),
            # whitening needs more than one of its patches of 3 x 3 pixels
            "image_size": whole_number("image_size", self.image_size, least=4 if self.whitening_power else 1),
        }
        for name in ("kmeans_images", "selection_epochs"):
            if getattr(self, name) is not None:
                checked[name] = whole_number(name, getattr(self, name))
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._refuse_settings_without_effect()

    def _refuse_settings_without_effect(self) -> None:
        """A setting that is in the file but means nothing there would mislead its reader."""
        unused = ("selection_epochs",) if self.recipe is None else ("decorrelation", "feature_norm", "tolerance", "precision")
        defaults = {field.name: field.default for field in fields(self)}
        for name in self._settings_of_other_datasets():
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"{name} has no effect on the data set {self.dataset!r}; remove it")
        changed = [name for name in unused if getattr(self, name) != defaults[name]]
        if changed:
            place = "belongs to experiments with a recipe" if self.recipe is None else "has no effect beside a recipe"
            raise ValueError(f"{changed[0]} {place}; remove it{'' if self.recipe is None else ' or set it in the recipe'}")

    def _settings_of_other_datasets(self) -> list[str]:
        own = DATASET_SETTINGS.get(self.dataset, ())
        return [name for names in DATASET_SETTINGS.values() for name in names if name not in own]

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read an experiment; a mistake in the file is named."""
        known = {field.name for field in fields(cls)}
        content = checked_settings(path, known=known, required=("name", "dataset", "network"))
        for name in ("seeds", "lambda_exponents"):
            if name in content:
                content[name] = tuple(content[name]) if isinstance(content[name], list) else content[name]
        try:
            content["network"] = NetworkConfig.from_dict(content["network"])
            if "recipe" in content:
                content["recipe"] = Recipe.from_dict(content["recipe"])
            return cls(**content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """All settings that mean something here, defaults included."""
        settings = {**asdict(self), "network": self.network.to_dict()}
        if self.recipe is None:
            unused = ("recipe", "selection_epochs", *(("kmeans_images",) if self.kmeans_images is None else ()))
        else:
            unused = ("decorrelation", "feature_norm", "tolerance", "precision")
        unused = (*unused, *self._settings_of_other_datasets())
        return {name: value for name, value in settings.items() if name not in unused}

    @property
    def preparation(self) -> Preparation:
        """What is done to its images."""
        return Preparation(self.whitening_power)

    def kept(self, count: int) -> int:
        """How many of `count` training images are not held out."""
        return count - round(self.validation * count)


@dataclass(frozen=True)
class SeedReport:
    """One run: errors in percent, seconds of each phase, peak memory of the accelerator in GiB if there is one.

    `validation_errors` has the error of each lambda exponent tried with this seed, `gradient` tells how well the final
    linear model converged (see `LinearModel`), `epochs` how long the final training took, if there was one.
    """

    seed: int
    test_error: float | None
    train_error: float | None
    validation_errors: dict[int, float]
    lambda_exponent: int
    gradient: float | None
    seconds: dict[str, float]
    peak_gib: float | None
    epochs: int | None = None


def read_dataset(name: str, folder: Path, settings: Mapping[str, Any]) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set, by the name of the data set, with those of the settings that belong to it."""
    reader = READERS[one_of("dataset", name, tuple(READERS))]
    return reader(folder, **{key: settings[key] for key in DATASET_SETTINGS.get(name, ()) if key in settings})


def read_data(experiment: Experiment, folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test set, which must suit the experiment."""
    train, test = read_dataset(experiment.dataset, folder, experiment.to_dict())
    if not 0 < experiment.kept(len(train.labels)) < len(train.labels):
        raise ValueError(f"validation = {experiment.validation} leaves no image on one side of {len(train.labels)}; change it")
    channels, wanted = train.images.shape[1], experiment.network.in_channels
    if channels != wanted:
        raise ValueError(f"the images have {channels} channels, but the network's in_channels is {wanted}")
    return train, test


def prepared_images(experiment: Experiment, images: np.ndarray, device: torch.device) -> Tensor:
    """Images as the network sees them, from bytes."""
    return experiment.preparation(torch.from_numpy(np.ascontiguousarray(images)).to(device))


def class_names(data: LabelledImages, count: int) -> tuple[str, ...]:
    """So many names, of the first classes; numbers where the data set has no names."""
    return (*data.classes, *map(str, range(len(data.classes), count)))[:count]


def peak_memory(device: torch.device) -> float | None:
    """GiB of the accelerator's memory used at most, since the program began or the peak was reset."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
