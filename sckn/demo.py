"""The demonstration: a small network learns from scikit-learn's digits without labels, beside a linear SVM on pixels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from sckn.features import FeatureTransform
from sckn.layer import LayerConfig
from sckn.linear import best_exponent, error_rate, fit_linear, one_vs_all, validation_errors
from sckn.network import CKN, NetworkConfig
from sckn.training.unsupervised import encode, fit_unsupervised

__all__ = ["DemoReport", "run_demo"]

NETWORK = NetworkConfig(in_channels=1, layers=(LayerConfig(32, 3), LayerConfig(128, 3, subsampling=2)))
EXPONENTS = range(-4, 11)


@dataclass(frozen=True)
class DemoReport:
    """Test errors in percent, and how many images there were."""

    pixels_error: float
    network_error: float
    training_images: int
    test_images: int


def run_demo(say: Callable[[str], None], seed: int = 0) -> DemoReport:
    """Train on half of the digits, test on the other half; `say` is told what happens."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))  # pyright: ignore
    images = torch.from_numpy(digits.images).float()[order].unsqueeze(1) / 16  # pyright: ignore
    labels = torch.from_numpy(digits.target)[order]  # pyright: ignore
    half = len(images) // 2
    say(f"scikit-learn's digits: {half} images of 8 x 8 pixels to learn from, {len(images) - half} to test")
    say("a linear SVM on the pixels ...")
    pixels_error = _linear_error(images.flatten(1), labels, half, images.shape[1])
    layers = " and ".join(str(layer.filters) for layer in NETWORK.layers)
    say(f"a kernel network of {layers} filters, trained without labels, and a linear SVM on its features ...")
    network = fit_unsupervised(CKN(NETWORK), images[:half], seed=seed)
    features = encode(network, images)
    network_error = _linear_error(features, labels, half, NETWORK.layers[-1].filters)
    return DemoReport(pixels_error, network_error, half, len(images) - half)


def _linear_error(features: Tensor, labels: Tensor, half: int, group: int) -> float:
    """Test error of a linear SVM on the first half; its lambda is chosen on a fifth of that."""
    transform = FeatureTransform.fit(features[:half], group)
    features = transform(features)
    errors = validation_errors(features[:half], labels[:half], half - half // 5, EXPONENTS)
    targets = one_vs_all(labels[:half], 10)
    model = fit_linear(features[:half], targets, 2.0 ** best_exponent(errors) / half)
    return error_rate(features[half:] @ model.weights, labels[half:])
