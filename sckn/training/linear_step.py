"""Step (i) of the alternation: at fixed filters, features of all images and the convex problem in W, equation (7)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sckn.layer import evaluating
from sckn.linear import LinearModel, NormalEquations, fit_linear, penalty
from sckn.losses import Square
from sckn.model import feature_rows
from sckn.network import CKN
from sckn.precision import full_precision
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples

__all__ = ["Fit", "LinearStep", "feature_batches"]

ENCODED = 512  # images at a time

Batches = Iterable[tuple[Tensor, Tensor]]  # features and targets


@dataclass(frozen=True)
class Fit:
    """A linear model at some filters: its mean loss, and its error in percent or, for the square loss, root mean square.

    `of_halves` (2, d, outputs) are the models of one half of the samples each, for cross-fitting.
    """

    linear: LinearModel
    loss: float
    error: float
    of_halves: Tensor | None = None


@dataclass(frozen=True)
class LinearStep:
    """The problem in W; `scale` multiplies the features."""

    recipe: Recipe
    regularization: float
    scale: float

    @classmethod
    def for_filters(cls, network: CKN, samples: Samples, recipe: Recipe, regularization: float) -> "LinearStep":
        """With the scale that gives the features of this network the mean norm of the recipe."""
        total = torch.zeros(2, dtype=torch.float64, device=samples.images.device)
        for features, _ in feature_batches(network, samples, 1.0):
            norms = torch.linalg.vector_norm(features.double(), dim=1)
            total += torch.stack([norms.sum(), norms.new_tensor(float(len(norms)))])
        length, count = samples.processes.sum(total)
        return cls(recipe, regularization, float(recipe.feature_norm * count / length) if length > 0 else 1.0)

    def fit(self, network: CKN, samples: Samples, start: LinearModel | None, second: Tensor | None = None) -> Fit:
        """The minimum in W at these filters; features that are not finite give a NaN objective.

        With the samples in the `second` half (n,) given, also the minimum for each half alone. These do not start from W of
        all samples, as the search for the next W does: a minimum found to some tolerance remembers its start, and so
        samples that are not in its half.
        """
        if isinstance(self.recipe.loss_function, Square):
            return self._closed_form(network, samples)
        batches = list(feature_batches(network, samples, self.scale))
        features, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        finite = samples.processes.sum((~torch.isfinite(features.sum())).float()) == 0
        if not bool(finite):
            return _nothing(features.new_zeros(features.shape[1], targets.shape[1]))
        linear = self._minimum(features, targets, start, samples)
        of_halves = None
        if second is not None:
            of_halves = torch.stack([self._minimum(features[h], targets[h], None, samples).weights for h in (~second, second)])
        return Fit(linear, *self._measured([(features, targets)], linear.weights, samples), of_halves)

    def _minimum(self, features: Tensor, targets: Tensor, start: LinearModel | None, samples: Samples) -> LinearModel:
        return fit_linear(
            features,
            targets,
            self.regularization,
            loss=self.recipe.loss_function,
            initial=start,
            tolerance=self.recipe.solver_tolerance,
            solver=self.recipe.solver,
            processes=samples.processes,
        )

    def _closed_form(self, network: CKN, samples: Samples) -> Fit:
        """Of the square loss: features are not kept, because those of all pixels of all images may be too many."""
        equations = None
        for features, targets in feature_batches(network, samples, self.scale):
            if equations is None:
                sizes = features.shape[1], targets.shape[1]
                equations = NormalEquations(*sizes, features.device, samples.processes)
            equations.add(features, targets)
        assert equations is not None  # there is always a batch
        weights = samples.images.new_zeros(equations.moments.shape)
        if not bool(torch.isfinite(samples.processes.sum(equations.gram.sum()))):
            return _nothing(weights)
        linear, loss = equations.solve(self.regularization)
        linear = replace(linear, weights=samples.processes.same(linear.weights.to(weights.dtype)))
        return Fit(linear, loss, math.sqrt(max(0.0, 2 * loss / weights.shape[1])))

    def judge(self, network: CKN, samples: Samples, weights: Tensor) -> Fit:
        """The objective, loss and error with these weights as they are."""
        loss, error = self._measured(feature_batches(network, samples, self.scale), weights, samples)
        return Fit(LinearModel(weights, loss + penalty(weights, self.regularization), math.nan, 0), loss, error)

    def loss_at_zero(self, samples: Samples) -> float:
        """The objective for W = 0, which no sensible training exceeds."""
        targets = feature_rows(samples.targets, samples.per_pixel)
        nothing = targets.new_zeros(len(targets), 1)
        return self._measured([(nothing, targets)], targets.new_zeros(1, targets.shape[1]), samples)[0]

    def _measured(self, batches: Batches, weights: Tensor, samples: Samples) -> tuple[float, float]:
        """Mean loss and error of the linear model on features and targets."""
        totals = torch.zeros(3, dtype=torch.float64, device=weights.device)
        for features, targets in batches:
            with full_precision(features.device):
                scores = features @ weights
            if not self.recipe.classifies:
                wrong = (scores - targets).square().mean(dim=1)
            elif targets.shape[1] == 1:
                wrong = ((scores > 0) != (targets > 0))[:, 0]
            else:
                wrong = scores.argmax(dim=1) != targets.argmax(dim=1)
            losses = self.recipe.loss_function(targets, scores).double().sum()
            totals += torch.stack([losses, wrong.double().sum(), losses.new_tensor(float(len(scores)))])
        totals = samples.processes.sum(totals)
        loss, mean = (float(total / totals[2]) for total in totals[:2])
        return loss, 100 * mean if self.recipe.classifies else math.sqrt(mean)


def _nothing(weights: Tensor) -> Fit:
    """Where features are not finite."""
    return Fit(LinearModel(weights, math.nan, math.nan, 0), math.nan, math.nan)


def feature_batches(network: CKN, samples: Samples, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
    """What the linear model sees, (n, p h w), or (n h w, p) where it acts on pixels, and its targets, batch by batch.

    There is always one, if only an empty one, so that all processes know the sizes. The parameters may not change meanwhile.
    """
    with torch.no_grad(), evaluating(network):
        encode = network.prepared()
        for images, targets in zip(samples.images.split(ENCODED), samples.targets.split(ENCODED), strict=True):
            features = feature_rows(encode(images), samples.per_pixel)
            yield features.mul_(scale) if scale != 1 else features, feature_rows(targets, samples.per_pixel)
