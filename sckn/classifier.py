"""A trained model with what is needed to use it: the names of its classes, and how images are prepared for it."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from sckn.layer import evaluating
from sckn.model import KernelModel
from sckn.pixels import check_unit_range, tensor_of
from sckn.precision import precision
from sckn.preparation import Preparation
from sckn.settings import whole_number

__all__ = ["ImageClassifier"]


class ImageClassifier(nn.Module):
    """Images as they are, in bytes or from 0 to 1, in; a score for each class out. `sckn.save` keeps all of it in one file.

    Scores are those of one-vs-all classifiers: the highest one is the answer, and none of them is a probability.

    Parameters
    ----------
    model: trained on prepared images. classes: a name for each of its outputs, in their order.
    image_size: width and height of the images.
    preparation: of images.
    name, experiment: of the training, and all its settings. figures: what it reached.

    Example
    -------
    >>> from sckn import CKN, LayerConfig, NetworkConfig
    >>> network = CKN(NetworkConfig(3, (LayerConfig(filters=4, patch=3, subsampling=4),)))
    >>> classifier = ImageClassifier(KernelModel(network, torch.randn(4 * 2 * 2, 2)), ("cat", "dog"), image_size=8)
    >>> classifier.predict(torch.rand(5, 3, 8, 8)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        model: KernelModel,
        classes: Sequence[str],
        image_size: int,
        *,
        preparation: Preparation | None = None,
        name: str = "",
        experiment: Mapping[str, Any] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.classes = _distinct_names(classes)
        self.image_size = whole_number("image_size", image_size)
        self.preparation = Preparation() if preparation is None else preparation
        self.name, self.experiment, self.figures = str(name), dict(experiment or {}), dict(figures or {})
        self._check_fit()

    @property
    def channels(self) -> int:
        """Of its images, 3 for colours."""
        return self.model.network.config.in_channels

    def _check_fit(self) -> None:
        config, (features, outputs) = self.model.network.config, self.model.weights.shape
        height, width = config.output_size(self.image_size, self.image_size)
        if self.model.per_pixel or features != config.layers[-1].filters * height * width:
            raise ValueError(f"the model does not classify whole images of {self.image_size} x {self.image_size} pixels")
        if outputs != len(self.classes):
            raise ValueError(f"the model has {outputs} outputs, but there are names for {len(self.classes)} classes")

    def forward(self, images: Tensor) -> Tensor:
        """Scores (B, classes) of images (B, c, size, size)."""
        expected = (self.channels, self.image_size, self.image_size)
        if tuple(images.shape[1:]) != expected:
            shape = " x ".join(map(str, expected))
            raise ValueError(
                f"the model takes a batch of images of {shape} (channels, height, width), got {tuple(images.shape)}; "
                "resize them, with channels first"
            )
        return self.model(self.preparation(images).to(self.model.weights.dtype))

    @torch.no_grad()
    def predict(self, images: Tensor | np.ndarray, batch_size: int = 256, *, progress: bool = False) -> Tensor:
        """Scores of many images, a batch at a time, on the device of the model, and alike on each: in fp32."""
        images = images if isinstance(images, Tensor) else tensor_of(images)
        device = self.model.weights.device
        with evaluating(self), precision("highest", device):
            batches = images.split(whole_number("batch_size", batch_size))
            bar = tqdm(batches, desc="classifying", unit="batch", disable=None if progress else True, leave=False)
            return torch.cat([self(_checked(batch.to(device))) for batch in bar])

    def description(self) -> dict[str, Any]:
        """All but the model, in a form for JSON."""
        return {
            "classes": list(self.classes),
            "image_size": self.image_size,
            "preparation": self.preparation.to_dict(),
            "name": self.name,
            "experiment": self.experiment,
            "figures": self.figures,
        }

    @classmethod
    def described(cls, model: KernelModel, description: Mapping[str, Any]) -> Self:
        """The classifier that `description` told of; what a later version may have added to it is passed over."""
        fields = ("classes", "image_size", "name", "experiment", "figures")
        known = {field: description[field] for field in fields}
        return cls(model, preparation=Preparation.from_dict(description["preparation"]), **known)


def _checked(images: Tensor) -> Tensor:
    """Other numbers would give scores, too, of images that nobody sees."""
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"expected images in bytes (uint8) or floating point, got {images.dtype}; convert them")
    if images.is_floating_point() and len(images):
        check_unit_range(images)
    return images


def _distinct_names(classes: Sequence[str]) -> tuple[str, ...]:
    proper = isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes)
    if not proper or not classes or len(set(classes)) < len(classes):
        raise ValueError(f"classes must be a list of names, each once, got {classes!r}")
    return tuple(classes)
