"""End-to-end training, section 3: filters and linear model minimise one objective together.

    min over W and unit-norm filters Z   (1/n) sum_i sum_c L(y_ic, <W_c, features of x_i>) + (lambda/2) |W|^2

It alternates between (i) the convex problem in W at fixed filters (`linear_step.py`) and (ii) an epoch of SGD on the
filters at fixed W (`step.py`), and undoes an epoch that made things worse.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sckn.clock import Clock
from sckn.layer import evaluating
from sckn.linear import LinearModel
from sckn.model import KernelModel
from sckn.network import CKN
from sckn.precision import precision
from sckn.processes import ALONE, Processes
from sckn.settings import real_number, whole_number
from sckn.training.active_set import ActiveSet
from sckn.training.augmentation import draw_moves
from sckn.training.averaging import IterateAverage
from sckn.training.linear_step import Fit, LinearStep
from sckn.training.preconditioner import preconditioners
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples
from sckn.training.sphere import SphereSGD
from sckn.training.step import BatchStep

__all__ = ["EpochRecord", "TrainingDivergedError", "TrainingResult", "TrainingState", "TrainingStore", "train_supervised"]

# Images whose patches the preconditioner is learned from.
PRECONDITIONING_IMAGES = 2000
# Training gives up after so many epochs in a row that end in NaN, or this part of the way from the first objective to that
# of W = 0, where features are worth nothing.
PATIENCE = 5
DIVERGED = 0.9

Arrays = Tensor | np.ndarray
EpochRecord = dict[str, Any]


class TrainingDivergedError(ValueError):
    """The objective was not finite, or far above its start, however small the learning rate became."""


@dataclass(frozen=True)
class TrainingState:
    """A training between two epochs: all that it needs to go on as if it had never stopped."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class TrainingStore(Protocol):
    """Where a training keeps its state and its figures; `RunFolder` is one."""

    def load_state(self) -> TrainingState | None: ...
    def save_state(self, state: TrainingState) -> None: ...
    def record(self, record: EpochRecord) -> None: ...
    def save_best(self, model: KernelModel) -> None: ...


@dataclass(frozen=True)
class TrainingResult:
    """The trained model, and a record of each epoch of this call, the state before the first one included.

    Objective, loss and training error are those of the filters and W at the end of the epoch, before it was undone if it was;
    with W by SGD and a schedule other than "halving" they are, but for the last epoch, means over the steps of the epoch, and
    there is no training error. The validation error is that of the model as it would be returned: after the epoch was
    undone, and with averaged iterates.
    """

    model: KernelModel
    history: list[EpochRecord]


def train_supervised(
    network: CKN,
    images: Arrays,
    targets: Arrays,
    *,
    regularization: float,
    recipe: Recipe | None = None,
    validation: tuple[Arrays, Arrays] | None = None,
    seed: int = 0,
    store: TrainingStore | None = None,
    processes: Processes = ALONE,
    progress: bool = True,
) -> TrainingResult:
    """Train a network from the filters it has, usually those of `fit_unsupervised`, and a linear model on top.

    Parameters
    ----------
    network: trained in place, on its device.
    images: (n, c, H, W), in floating point or bytes; with several processes the share of this one.
    targets: class numbers (n,), or (n, outputs) of 1 and -1; for the square loss any numbers, (n,), (n, outputs), or
        (n, outputs, h, w) for a linear model of each pixel of the last map.
    regularization: lambda of the objective, near 1/n.
    recipe: the settings; the paper's where left out.
    validation: images and targets on which the error is measured after each epoch.
    seed: of the order of the samples, of the augmentation and of what is reactivated.
    store: keeps the state after each epoch; a training that was interrupted goes on from there.
    progress: show a bar, if standard error is a terminal.

    Example
    -------
    >>> from sklearn.datasets import load_digits
    >>> from sckn import CKN, LayerConfig, NetworkConfig, fit_unsupervised
    >>> images, labels = load_digits().images[:200, None] / 16, load_digits().target[:200]
    >>> network = CKN(NetworkConfig(1, (LayerConfig(filters=16, patch=3, subsampling=2),)))
    >>> network = fit_unsupervised(network, images, patches=2000)
    >>> result = train_supervised(network, images, labels, regularization=1 / 200, recipe=Recipe(epochs=2))
    >>> result.history[-1]["objective"] < result.history[0]["objective"]
    True
    """
    recipe = Recipe() if recipe is None else recipe
    regularization = real_number("regularization", regularization, above=0)
    like = next(network.parameters())
    samples = Samples.checked(images, targets, like=like, classification=recipe.classifies, processes=processes)
    held_out = None
    if validation is not None:
        settings: dict[str, Any] = {"classification": recipe.classifies, "classes": samples.targets.shape[1]}
        held_out = Samples.checked(*validation, like=like, **settings, processes=processes)
    if samples.total() == 0:
        raise ValueError("there are no images to train on")
    with precision(recipe.precision, like.device):
        training = _Training(network, samples, held_out, recipe, regularization, whole_number("seed", seed, least=0))
        return training.run(store if processes.first else None, progress and processes.first)


class _Training:
    """What a training holds."""

    def __init__(
        self, network: CKN, samples: Samples, validation: Samples | None, recipe: Recipe, regularization: float, seed: int
    ) -> None:
        self.network, self.samples, self.validation = network, samples, validation
        self.recipe, self.processes = recipe, samples.processes
        self.device, self.dtype = samples.images.device, samples.images.dtype
        self.generator = torch.Generator().manual_seed(seed)
        self.active = ActiveSet(len(samples.images), self.device, self.processes)
        self.linear_step = LinearStep(recipe, regularization, 1.0)
        self.epoch = self.failures = self.sample_gradients = 0
        self.limit = math.inf  # an objective not below it means divergence
        self.factor, self.best_error = 1.0, math.inf  # of the learning rates, halved at each step back; on validation
        self.history: list[EpochRecord] = []

    def run(self, store: TrainingStore | None, progress: bool) -> TrainingResult:
        saved = self.processes.broadcast(store.load_state() if store is not None else None)
        self._prepare(saved)
        bar = tqdm(total=self.recipe.epochs, desc="training", unit="epoch", disable=None if progress else True)
        with bar:
            if saved is None:
                self._finish_epoch(store, bar, accepted=True, fit=self._first_fit(), clock=Clock(self.device), rate=1.0)
            while self.epoch < self.recipe.epochs:
                self._train_one_epoch(store, bar)
        return TrainingResult(self._model(), self.history)

    # -- before the first epoch ---------------------------------------------------------------------------------------

    def _prepare(self, saved: TrainingState | None) -> None:
        """Everything in the place it keeps (a recorded step finds it there), from the start or from a saved state."""
        if saved is not None:
            prefix = "network."
            network = {name.removeprefix(prefix): value for name, value in saved.tensors.items() if name.startswith(prefix)}
            try:
                self.network.load_state_dict(network)
            except RuntimeError:
                raise ValueError(
                    "the saved state is that of another network, or of another version of sckn; start again in another folder"
                ) from None
        with torch.no_grad():  # all processes begin with the filters of the first
            for parameter in self.network.parameters():
                parameter.copy_(self.processes.same(parameter))
        width = self._feature_width(self.samples)
        if self.validation is not None and self._feature_width(self.validation) != width:
            sizes = f"{tuple(self.validation.images.shape[1:])} and {tuple(self.samples.images.shape[1:])}"
            raise ValueError(f"images for validation and for training have different numbers of features, from {sizes}")
        self.weights = torch.zeros(width, self.samples.targets.shape[1], dtype=self.dtype, device=self.device)
        self.weights.requires_grad_(self.recipe.weights == "sgd")
        self.linear = self.averaged_linear = LinearModel(self.weights.detach().clone(), math.inf, math.inf, 0)
        self.preconditioners = self._preconditioners(saved)
        self.optimizer = self._optimizer()
        learned = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.average = IterateAverage(learned, self.recipe.averaging) if self.recipe.averaging else None
        for parameter in learned:  # momentum from the start, where the state of a training puts it
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        if saved is not None:
            self._restore(saved)
        else:
            self.network.train()
            with torch.no_grad():
                self.network.inverse_roots()  # moving frames must be near before a step is recorded
            regularization = self.linear_step.regularization
            self.linear_step = LinearStep.for_filters(self.network, self.samples, self.recipe, regularization)
        self.batch_step = BatchStep(
            self.network,
            self.weights,
            self.samples,
            self.active,
            self.recipe.loss_function,
            self.optimizer,
            scale=self.linear_step.scale,
            shift=self.recipe.shift,
            average=self.average,
        )

    def _feature_width(self, samples: Samples) -> int:
        channels, *size = samples.images.shape[1:]
        if channels != self.network.config.in_channels:
            raise ValueError(f"the images have {channels} channels, but the network takes {self.network.config.in_channels}")
        height, width = self.network.config.output_size(*size)
        if samples.per_pixel and samples.targets.shape[2:] != (height, width):
            wanted = tuple(samples.targets.shape[2:])
            raise ValueError(f"the targets have {wanted} pixels, but the last map of the network has {(height, width)}")
        filters = self.network.config.layers[-1].filters
        return filters if samples.per_pixel else filters * height * width

    def _preconditioners(self, saved: TrainingState | None) -> list[Tensor | None]:
        """Q of each layer; it belongs to the filters that training began with, so it is part of the state."""
        layers = range(len(self.network.kernel_layers))
        if self.recipe.preconditioner is None:
            return [None for _ in layers]
        if saved is not None:
            return [saved.tensors[f"preconditioner.{index}"].to(self.device) for index in layers]
        shown = self.samples.images[: self.processes.share_sizes(PRECONDITIONING_IMAGES)[self.processes.rank]]
        return list(preconditioners(self.network, shown, self.recipe.preconditioner, processes=self.processes))

    def _optimizer(self) -> SphereSGD:
        recipe, layers = self.recipe, self.network.kernel_layers
        # learning rates are on the device, so that a recorded step sees them change
        bases = (recipe.learning_rate, recipe.alpha_learning_rate, recipe.weights_learning_rate)
        self.rates = [(base, torch.zeros((), dtype=self.dtype, device=self.device)) for base in bases]
        filter_rate, alpha_rate, weights_rate = (rate for _, rate in self.rates)
        groups: list[dict[str, Any]] = [
            {"params": [layer.filters], "lr": filter_rate, "preconditioner": Q}
            for layer, Q in zip(layers, self.preconditioners, strict=True)
        ]
        alphas = [layer.log_alpha for layer in layers if layer.log_alpha is not None]
        if alphas:
            groups.append({"params": alphas, "lr": alpha_rate, "sphere": False})
        if recipe.weights == "sgd":
            decay = self.linear_step.regularization
            groups.append({"params": [self.weights], "lr": weights_rate, "sphere": False, "weight_decay": decay})
        return SphereSGD(groups, momentum=recipe.momentum)

    def _first_fit(self) -> Fit:
        fit = self.linear_step.fit(self.network, self.samples, None)
        first, worst = fit.linear.objective, self.linear_step.loss_at_zero(self.samples)
        self.limit = first + DIVERGED * (worst - first)
        if not math.isfinite(first):
            raise ValueError("the features of the network are not finite; check its filters")
        self._keep(fit.linear)
        self.averaged_linear = fit.linear
        if self.average is not None:
            self.average.restart()
        return fit

    # -- one epoch ----------------------------------------------------------------------------------------------------

    def _train_one_epoch(self, store: TrainingStore | None, bar: Any) -> None:
        clock, rate = Clock(self.device), self._rate(self.epoch / self.recipe.epochs)
        before = [(tensor, tensor.detach().clone()) for tensor in self._changed_by_an_epoch()]
        fit = Fit(LinearModel(self.linear.weights, math.nan, math.nan, 0), math.nan, math.nan)
        try:
            loss_seen = self._train_filters()
            clock.lap("filters")
            fit = self._fit_after_epoch(loss_seen)
        except ValueError:
            if self._filters_have_a_root():
                raise
        clock.lap("weights")
        objective = fit.linear.objective
        halving = self.recipe.schedule == "halving"
        rose = halving and objective > self.linear.objective
        diverged = not math.isfinite(objective) or (objective > self.limit and not halving)
        self.epoch += 1
        self.failures = self.failures + 1 if diverged else 0
        if diverged or rose:
            self._step_back(before)
        else:
            self._keep(fit.linear)
        if diverged:
            self._report_divergence(objective)
        if self.recipe.active_set:
            self.active.reactivate(self.recipe.reactivation, self.generator)
        else:
            self.active.flags.fill_(True)
        self._finish_epoch(store, bar, accepted=not (diverged or rose), fit=fit, clock=clock, rate=rate)

    def _train_filters(self) -> float:
        """Step (ii), one pass of SGD over the active samples of all processes.

        It returns the mean loss of all samples as the steps saw it: the inactive ones have none.
        """
        order = self.active.shuffled(self.generator)
        count, recipe = self.samples.total(), self.recipe
        moves = draw_moves(count, recipe.flip, recipe.shift, self.generator)
        moves = None if moves is None else moves[self.processes.share].to(self.device)
        batches = order.to(self.device).split(recipe.batch_size) if len(order) else ()
        self.batch_step.begin_epoch()
        self.batch_step.total_loss.zero_()
        self.network.train()
        for number, batch in enumerate(batches):
            self._set_rates((self.epoch + number / len(batches)) / recipe.epochs)
            own = self.active.own(batch)
            self.batch_step(own, None if moves is None else moves[own], len(batch))
        self.sample_gradients += len(order)
        return float(self.processes.sum(self.batch_step.total_loss)) / count

    def _rate(self, progress: float) -> float:
        return self.factor * self.recipe.rate(progress)

    def _set_rates(self, progress: float) -> None:
        for base, rate in self.rates:
            rate.fill_(base * self._rate(progress))

    def _fit_after_epoch(self, loss_seen: float) -> Fit:
        if self.recipe.weights == "solver":
            return self.linear_step.fit(self.network, self.samples, self.linear)
        weights = self.weights.detach().clone()
        if self.recipe.schedule == "halving":
            return self.linear_step.judge(self.network, self.samples, weights)
        if not self._filters_have_a_root():  # the last step made them so: no loss has seen it
            loss_seen = math.nan
        if self.epoch + 1 == self.recipe.epochs:  # the last figures are exact
            return self.linear_step.judge(self.network, self.samples, weights)
        # another pass over the images would cost a third of the epoch
        objective = loss_seen + self.linear_step.penalty(weights)
        return Fit(LinearModel(weights, objective, math.nan, 0), loss_seen, math.nan)

    def _filters_have_a_root(self) -> bool:
        """False once they, or an alpha, are not finite, or all so alike that their kernel matrix cannot be inverted."""
        try:
            with torch.no_grad(), evaluating(self.network):
                self.network.inverse_roots()
        except ValueError:
            return False
        alphas = [layer.log_alpha.detach().exp() for layer in self.network.kernel_layers if layer.log_alpha is not None]
        return all(bool(torch.isfinite(alpha)) for alpha in alphas)

    def _keep(self, linear: LinearModel) -> None:
        self.linear = linear
        with torch.no_grad():
            self.weights.copy_(linear.weights)

    def _changed_by_an_epoch(self) -> list[Tensor]:
        """Filters, alphas and frames; W; the active set; running means."""
        means = [] if self.average is None else self.average.means
        return [*self.network.state_dict(keep_vars=True).values(), self.weights, self.active.flags, *means]

    def _step_back(self, before: list[tuple[Tensor, Tensor]]) -> None:
        """Back to the filters and W before the epoch; the momentum is forgotten, the learning rate halved."""
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
            for state in self.optimizer.state.values():
                state["momentum_buffer"].zero_()
        self.factor /= 2

    def _report_divergence(self, objective: float) -> None:
        found = f"the objective was {objective:.3g} after epoch {self.epoch}"
        if self.failures >= PATIENCE:
            raise TrainingDivergedError(
                f"training diverges: {found}, {self.failures} times in a row, at learning rates down to "
                f"{self.recipe.learning_rate * self.factor * 2:.2g}; lower learning_rate in the recipe"
            )
        warnings.warn(f"{found}; the epoch is undone and the learning rate halved", RuntimeWarning, stacklevel=2)

    # -- after each epoch ---------------------------------------------------------------------------------------------

    def _finish_epoch(
        self, store: TrainingStore | None, bar: Any, *, accepted: bool, fit: Fit, clock: Clock, rate: float
    ) -> None:
        """Measure, record, and make safe."""
        network = self._network_that_counts()
        if self.average is not None and accepted and self.epoch:
            self.averaged_linear = self._averaged_linear(network)
        linear = self.linear if self.average is None else self.averaged_linear
        validation_error = None
        if self.validation is not None:
            validation_error = self.linear_step.judge(network, self.validation, linear.weights).error
        clock.lap("validation")
        record = {
            "epoch": self.epoch,
            "objective": fit.linear.objective,
            "loss": fit.loss,
            "train_error": fit.error,
            "validation_error": validation_error,
            "accepted": accepted,
            "learning_rate": self.recipe.learning_rate
            * self.factor
            * self.recipe.rate(self.epoch / max(1, self.recipe.epochs)),
            "active_fraction": self.active.fraction(),
            "sample_gradients": self.sample_gradients,
            "alphas": [float(layer.log_alpha.detach().exp()) for layer in network.kernel_layers if layer.log_alpha is not None],
            "solver_iterations": fit.linear.iterations,
            "solver_gradient": fit.linear.gradient,
            "seconds": clock.seconds,
        }
        self.history.append(record)
        best = validation_error is not None and validation_error < self.best_error
        self.best_error = validation_error if best and validation_error is not None else self.best_error
        state = self._state()  # all processes have a part in it
        if store is not None:
            store.record(record)
            if best:
                store.save_best(KernelModel(network, linear.weights * self.linear_step.scale, per_pixel=self.samples.per_pixel))
            store.save_state(state)
        shown = {"objective": fit.linear.objective, "train": fit.error, "validation": validation_error}
        bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items() if value is not None}, refresh=False)
        bar.n = self.epoch
        bar.refresh()

    def _network_that_counts(self) -> CKN:
        return self.network if self.average is None else self.average.averaged(self.network)

    def _averaged_linear(self, network: CKN) -> LinearModel:
        """W for the averaged filters."""
        if self.average is None or self.recipe.weights == "solver":
            return self.linear_step.fit(network, self.samples, self.averaged_linear).linear
        return LinearModel(self.average.mean_of(self.weights).clone(), math.nan, math.nan, 0)

    def _model(self) -> KernelModel:
        """The model that counts; the network that was given ends with its filters."""
        linear = self.linear
        if self.average is not None:
            self.network.load_state_dict(self.average.averaged(self.network).state_dict())
            linear = self.averaged_linear
        self.network.eval()
        return KernelModel(self.network, linear.weights * self.linear_step.scale, per_pixel=self.samples.per_pixel)

    def _state(self) -> TrainingState:
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {"weights": self.linear.weights, "averaged_weights": self.averaged_linear.weights}
        duals = {"dual": self.linear.dual, "averaged_dual": self.averaged_linear.dual}
        tensors |= {name: dual for name, dual in duals.items() if dual is not None}
        tensors |= {"active": self.active.all_flags(), "generator": self.generator.get_state()}
        tensors |= {f"momentum.{index}": buffer for index, buffer in enumerate(self._momentum())}
        tensors |= {f"preconditioner.{index}": Q for index, Q in enumerate(self.preconditioners) if Q is not None}
        if self.average is not None:
            tensors |= {f"mean.{index}": mean for index, mean in enumerate(self.average.means)}
        names = ("epoch", "failures", "sample_gradients", "factor", "best_error", "limit")
        numbers = {name: getattr(self, name) for name in names}
        return TrainingState(tensors, {**numbers, "objective": self.linear.objective, "scale": self.linear_step.scale})

    def _restore(self, saved: TrainingState) -> None:
        """The state of `_state`, into the tensors that are there; the network has been filled before."""
        tensors, numbers = saved.tensors, dict(saved.numbers)
        self.linear_step = LinearStep(self.recipe, self.linear_step.regularization, numbers.pop("scale"))
        objective = numbers.pop("objective")
        weights, averaged = (tensors[name].to(self.device) for name in ("weights", "averaged_weights"))
        self._keep(LinearModel(weights, objective, math.nan, 0, tensors.get("dual")))
        self.averaged_linear = LinearModel(averaged, math.nan, math.nan, 0, tensors.get("averaged_dual"))
        self.active.flags.copy_(tensors["active"][self.processes.share])
        self.generator.set_state(tensors["generator"].cpu())
        for index, buffer in enumerate(self._momentum()):
            buffer.copy_(tensors[f"momentum.{index}"])
        for index, mean in enumerate([] if self.average is None else self.average.means):
            mean.copy_(tensors[f"mean.{index}"])
        for name, value in numbers.items():
            setattr(self, name, value)

    def _momentum(self) -> list[Tensor]:
        return [
            self.optimizer.state[parameter]["momentum_buffer"]
            for group in self.optimizer.param_groups
            for parameter in group["params"]
        ]
