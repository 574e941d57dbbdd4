"""An experiment on super-resolution in one TOML file: a factor, a network, and how it is trained."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from sckn.network import NetworkConfig
from sckn.settings import file_name, one_of, real_number, true_or_false, whole_number
from sckn.superres.patch_source import checked_contrast_power, target_side
from sckn.superres.upscaler import UpscalerConfig, network_margin
from sckn.training.recipe import Recipe
from sckn.training.toml_file import checked_settings, read_toml
from sckn.training.widening import obstacle_to_widening

__all__ = ["UpscalingExperiment", "is_about_upscaling", "is_upscaling_experiment", "obstacle_to_start"]

DATASETS = ("bsds500",)
# The least value of each setting that is a whole number.
LEAST_VALUES = {
    "scale": 2,
    "patch": 1,
    "samples": 1,
    "validation_photos": 0,
    "validation_samples": 1,
    "kmeans_samples": 1,
    "patches": 1,
    "iterations": 1,
    "batch_size": 1,
    "seed": 0,
}


@dataclass(frozen=True)
class UpscalingExperiment:
    """What a TOML file in experiments/ says, where it is about super-resolution.

    Parameters
    ----------
    name: of the result. dataset: "bsds500". network, recipe: what is trained, and how, with the square loss.
    scale: the factor. low_resolution: the network works on the small image (see `Upscaler`).
    patch: side of the network's input in training. samples: how many such patches in an epoch; the paper has 200,000 in all.
    new_patches: others in each epoch. contrast_power: which patches are drawn more often (see `PatchSource`); left out, none.
    every_shift: photographs are made smaller from each of the scale^2 places in which the grid of small pixels can lie, which
        gives as many times more patches, in as much more memory (x4 of all of BSDS500: 4 GB).
    regularization: lambda, of features and targets scaled to mean squares that do not depend on the photographs.
    validation_photos: how many photographs are held out, evenly spread over all; 0 trains on all of them.
    validation_samples: patches of these, on which each epoch is judged.
    start: with whose filters and learned alphas training begins: the name or file of an upscaler with the same layers and no
        more filters (see `widen`), or an experiment that is trained first, in TOML its file beside this one, such as
        "narrow.toml". Empty begins with filters of k-means.
    teacher: name or file of an upscaler of the same factor; targets are then its results on the photographs that are learned
        from, instead of these. Photographs held out stay as they are. Empty learns from photographs.
    kmeans_samples: patches from which k-means learns. patches, iterations: of k-means, for each layer.
    batch_size: samples encoded at a time in that. seed: of all that is random.
    """

    name: str
    dataset: str
    scale: int
    network: NetworkConfig
    recipe: Recipe
    low_resolution: bool = False
    patch: int = 32
    samples: int = 200_000
    new_patches: bool = False
    contrast_power: float | None = None
    every_shift: bool = False
    regularization: float = 1e-7
    validation_photos: int = 25
    validation_samples: int = 5000
    start: "str | UpscalingExperiment" = ""
    teacher: str = ""
    kmeans_samples: int = 5000
    patches: int = 100_000
    iterations: int = 20
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.network, NetworkConfig) or not isinstance(self.recipe, Recipe):
            raise ValueError(f"expected a NetworkConfig and a Recipe, got {self.network!r} and {self.recipe!r}")
        checked = {
            "name": file_name("name", self.name),
            "dataset": one_of("dataset", self.dataset, DATASETS),
            "low_resolution": true_or_false("low_resolution", self.low_resolution),
            "new_patches": true_or_false("new_patches", self.new_patches),
            "every_shift": true_or_false("every_shift", self.every_shift),
            "regularization": real_number("regularization", self.regularization, above=0),
            **{name: whole_number(name, getattr(self, name), least) for name, least in LEAST_VALUES.items()},
        }
        if self.contrast_power is not None:
            checked["contrast_power"] = checked_contrast_power(self.contrast_power)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if isinstance(self.start, UpscalingExperiment):
            obstacle = obstacle_to_start(self.start.network, self.network)
            if obstacle is not None:
                raise ValueError(f"start: the network of {self.start.name} has {obstacle}")
        elif not isinstance(self.start, str):
            raise ValueError(f"start must be the name or file of an upscaler, an experiment, or empty, got {self.start!r}")
        if not isinstance(self.teacher, str):
            raise ValueError(f"teacher must be the name or file of an upscaler, or empty, got {self.teacher!r}")
        if self.recipe.classifies:
            raise ValueError(f'super-resolution learns numbers: set loss = "square" in the recipe, not "{self.recipe.loss}"')
        if self.recipe.flip or self.recipe.shift:
            raise ValueError("patches are turned when they are drawn: remove flip and shift from the recipe")
        target_side(self.patch, self.margin)

    @property
    def margin(self) -> int:
        """Pixels that the network loses on each side."""
        return network_margin(self.network)

    @property
    def upscaler(self) -> UpscalerConfig:
        """What is to be trained; the unit of its detail is known once photographs are."""
        return UpscalerConfig(self.scale, self.low_resolution)

    @classmethod
    def from_toml(cls, path: Path, begun_with_by: tuple[Path, ...] = ()) -> Self:
        """Read an experiment, and that which it begins with; a mistake in a file is named."""
        if path.resolve() in begun_with_by:
            raise ValueError(f"{path} begins with itself: change start")
        required = ("name", "dataset", "scale", "network", "recipe")
        content = checked_settings(path, known={field.name for field in fields(cls)}, required=required)
        try:
            content["network"] = NetworkConfig.from_dict(content["network"])
            content["recipe"] = Recipe.from_dict(content["recipe"])
            if str(content.get("start", "")).endswith(".toml"):
                content["start"] = cls.from_toml(path.parent / content["start"], (*begun_with_by, path.resolve()))
            return cls(**content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """All settings, defaults included."""
        start = self.start.to_dict() if isinstance(self.start, UpscalingExperiment) else self.start
        return {**asdict(self), "network": self.network.to_dict(), "start": start}


def obstacle_to_start(first: NetworkConfig, network: NetworkConfig) -> str | None:
    """What keeps a training from beginning with this network, and what would be needed, if anything does."""
    obstacle = obstacle_to_widening(first, network)
    return obstacle and f"{obstacle}; begin with one that has the same layers, of as many filters or fewer"


def is_upscaling_experiment(path: Path) -> bool:
    """Whether a TOML file is about super-resolution, by its data set."""
    return is_about_upscaling(read_toml(path))


def is_about_upscaling(settings: Mapping[str, Any]) -> bool:
    """Whether the settings of an experiment, in a file or of a run, are about super-resolution."""
    return settings.get("dataset") in DATASETS
