"""An experiment without a recipe: filters by k-means, then a linear SVM on the features.

lambda = 2^i/n is chosen on a part of the training set held out, then the linear model is fitted on all of it; the test
set is looked at once, at the end.
"""

from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sckn.clock import Clock
from sckn.features import FeatureTransform
from sckn.linear import best_exponent, error_rate, fit_linear, one_vs_all, validation_errors
from sckn.network import CKN
from sckn.precision import precision
from sckn.training.experiment import Experiment, SeedReport, peak_memory, prepared_images, read_data
from sckn.training.unsupervised import encode, fit_unsupervised

__all__ = ["run_without_labels"]


def run_without_labels(experiment: Experiment, folder: Path, device: torch.device, *, test: bool = True) -> list[SeedReport]:
    """Run every seed. With `test` False only the validation errors are found."""
    started = perf_counter()
    train, held_out = read_data(experiment, folder)
    images = prepared_images(experiment, train.images, device)
    test_images = prepared_images(experiment, held_out.images, device) if test else None
    prepared = perf_counter() - started
    with precision(experiment.precision, device):
        return [
            _run_seed(experiment, seed, (images, train.labels), (test_images, held_out.labels), prepared)
            for seed in tqdm(experiment.seeds, desc=experiment.name, unit="seed", disable=None)
        ]


def _run_seed(
    experiment: Experiment,
    seed: int,
    train: tuple[Tensor, np.ndarray],
    test: tuple[Tensor | None, np.ndarray],
    prepared: float,
) -> SeedReport:
    images, device = train[0], train[0].device
    clock = Clock(device)
    torch.manual_seed(seed)
    # one shuffle at the start makes the held-out part a slice, so that features need not be copied
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    labels = torch.from_numpy(train[1])[order].to(device)
    classes = int(train[1].max()) + 1

    network = CKN(experiment.network).to(device)
    fit_unsupervised(
        network,
        images[: experiment.kmeans_images],
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

    kept = experiment.kept(len(features))
    errors = validation_errors(features, labels, kept, experiment.lambda_exponents, tolerance=experiment.tolerance)
    best = best_exponent(errors)
    clock.lap("choice of lambda")
    test_error = train_error = gradient = None
    if test[0] is not None:
        targets = one_vs_all(labels, classes)
        model = fit_linear(features, targets, 2.0**best / len(features), tolerance=experiment.tolerance)
        weights, gradient = model.weights, model.gradient
        train_error = error_rate(features @ weights, labels)
        clock.lap("final fit")
        test_features = transform(encode(network, test[0], batch_size=experiment.batch_size))
        test_error = error_rate(test_features @ weights, torch.from_numpy(test[1]).to(device))
        clock.lap("test")
    seconds = {"preparation": prepared, **clock.seconds}
    return SeedReport(seed, test_error, train_error, errors, best, gradient, seconds, peak_memory(device))
