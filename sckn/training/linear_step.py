"""Step (i) of the alternation: at fixed filters, features of all images and the convex problem in W, equation (7)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sckn.layer import evaluating
from sckn.linear import LinearModel, fit_linear, penalty
from sckn.model import feature_rows
from sckn.network import CKN
from sckn.precision import full_precision
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples

__all__ = ["Fit", "LinearStep"]

ENCODED = 512  # images at a time


@dataclass(frozen=True)
class Fit:
    """A linear model at some filters: its mean loss, and its error in percent or, for the square loss, root mean square."""

    linear: LinearModel
    loss: float
    error: float


@dataclass(frozen=True)
class LinearStep:
    """The problem in W; `scale` multiplies the features."""

    recipe: Recipe
    regularization: float
    scale: float

    @classmethod
    def for_filters(cls, network: CKN, samples: Samples, recipe: Recipe, regularization: float) -> "LinearStep":
        """With the scale that gives the features of this network the mean norm of the recipe."""
        features = features_of(network, samples)
        norms = torch.linalg.vector_norm(features.double(), dim=1)
        totals = samples.processes.sum(torch.stack([norms.sum(), norms.new_tensor(float(len(norms)))]))
        scale = float(recipe.feature_norm * totals[1] / totals[0]) if totals[0] > 0 else 1.0
        return cls(recipe, regularization, scale)

    def fit(self, network: CKN, samples: Samples, start: LinearModel | None) -> Fit:
        """The minimum in W at these filters; features that are not finite give a NaN objective."""
        features = features_of(network, samples).mul_(self.scale)
        finite = samples.processes.sum((~torch.isfinite(features.sum())).float()) == 0
        if not bool(finite):
            weights = features.new_zeros(features.shape[1], samples.targets.shape[1])
            return Fit(LinearModel(weights, math.nan, math.nan, 0), math.nan, math.nan)
        linear = fit_linear(
            features,
            feature_rows(samples.targets, samples.per_pixel),
            self.regularization,
            loss=self.recipe.loss_function,
            initial=start,
            tolerance=self.recipe.solver_tolerance,
            solver=self.recipe.solver,
            processes=samples.processes,
        )
        return Fit(linear, *self._measured(_scores(features, linear.weights), samples))

    def judge(self, network: CKN, samples: Samples, weights: Tensor) -> Fit:
        """The objective, loss and error with these weights as they are."""
        features = features_of(network, samples).mul_(self.scale)
        loss, error = self._measured(_scores(features, weights), samples)
        return Fit(LinearModel(weights, loss + penalty(weights, self.regularization), math.nan, 0), loss, error)

    def loss_at_zero(self, samples: Samples) -> float:
        """The objective for W = 0, which no sensible training exceeds."""
        rows = feature_rows(samples.targets, samples.per_pixel)
        return self._measured(torch.zeros_like(rows), samples)[0]

    def _measured(self, scores: Tensor, samples: Samples) -> tuple[float, float]:
        targets = feature_rows(samples.targets, samples.per_pixel)
        if not self.recipe.classifies:
            wrong = (scores - targets).square().mean(dim=1)
        elif targets.shape[1] == 1:
            wrong = ((scores > 0) != (targets > 0))[:, 0]
        else:
            wrong = scores.argmax(dim=1) != targets.argmax(dim=1)
        losses = self.recipe.loss_function(targets, scores).double().sum()
        totals = samples.processes.sum(torch.stack([losses, wrong.double().sum(), losses.new_tensor(float(len(scores)))]))
        loss, mean = (float(total / totals[2]) for total in totals[:2])
        return loss, 100 * mean if self.recipe.classifies else math.sqrt(mean)


def _scores(features: Tensor, weights: Tensor) -> Tensor:
    with full_precision(features.device):
        return features @ weights


def features_of(network: CKN, samples: Samples) -> Tensor:
    """What the linear model sees of all images, not scaled: (n, p h w), or (n h w, p) where it acts on pixels."""
    with torch.no_grad(), evaluating(network):
        maps = [network(batch) for batch in samples.images.split(ENCODED)]
        return torch.cat([feature_rows(part, samples.per_pixel) for part in maps])
