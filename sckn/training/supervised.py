"""End-to-end training, section 3: filters and linear model minimise one objective together.

    min over W and unit-norm filters Z   (1/n) sum_i sum_c L(y_ic, <W_c, features of x_i>) + (lambda/2) |W|^2

It alternates between (i) the convex problem in W at fixed filters (`linear_step.py`) and (ii) an epoch of SGD on the
filters at fixed W (`filter_step.py`), and undoes an epoch that made things worse.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sckn.clock import Clock
from sckn.layer import evaluating
from sckn.linear import LinearModel, penalty
from sckn.model import KernelModel
from sckn.network import CKN
from sckn.precision import loses_digits, precision
from sckn.processes import ALONE, Processes
from sckn.settings import real_number, whole_number
from sckn.training.filter_step import FilterStep
from sckn.training.linear_step import Fit, LinearStep
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples
from sckn.training.state import EpochRecord, TrainingState, TrainingStore

__all__ = ["TrainingDivergedError", "TrainingResult", "train_supervised"]

# Training gives up after so many epochs in a row that diverge: that end in NaN, with this multiple of the objective at
# W = 0, or, once the objective is well below that, with most of what was gained lost: features are worth nothing then.
PATIENCE = 5
EXPLODED = 2.0
GAINED, LOST = 0.1, 0.9

# Attributes of a training that are part of its state as they are.
NUMBERS = ("epoch", "failures", "factor", "best_error", "at_zero")

Arrays = Tensor | np.ndarray


class TrainingDivergedError(ValueError):
    """The objective was not finite, or far above its start, however small the learning rate became."""


@dataclass(frozen=True)
class TrainingResult:
    """The trained model, and a record of each epoch of this call, the state before the first one included.

    Objective, loss and training error are those of the filters and W at the end of the epoch, before it was undone if it was;
    with W by SGD and a schedule other than "halving" they are, but for the last epoch, means over the steps of the epoch, and
    there is no training error. The validation error is that of the model after the epoch was undone, and with averaged
    iterates. `learning_rate` is that with which the next epoch would begin.

    All these are at the precision of the recipe. Where that is below fp32, W of the model is that of the solver for features in
    fp32, found after the last epoch in `closing_seconds`.
    """

    model: KernelModel
    history: list[EpochRecord]
    closing_seconds: float = 0.0


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
    renew: Callable[[int], tuple[Arrays, Arrays]] | None = None,
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
    recipe: the settings; the paper's alternation where left out.
    validation: images and targets on which the error is measured after each epoch.
    seed: of the order of the samples, of the augmentation and of what is reactivated.
    store: keeps the state after each epoch; a training that was interrupted goes on from there.
    renew: gives the images and targets of each epoch from the second (number 1) on, as many and as large as the first ones:
        a training on more than fit in memory. Not with what remembers single samples or compares objectives: the active set,
        cross-fitting, MISO and schedule = "halving".
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
    if renew is not None:  # its own, because they will be overwritten
        samples = replace(samples, images=samples.images.clone(), targets=samples.targets.clone())
    held_out = None
    if validation is not None:
        settings: dict[str, Any] = {"classification": recipe.classifies, "classes": samples.targets.shape[1]}
        held_out = Samples.checked(*validation, like=like, **settings, processes=processes)
    _refuse_what_cannot_work(network, samples, held_out, recipe, renewed=renew is not None)
    with precision(recipe.precision, like.device):
        store = store if processes.first else None
        saved = processes.broadcast(store.load_state() if store is not None else None)
        seed = whole_number("seed", seed, least=0)
        training = _Alternation(network, samples, held_out, recipe, regularization, seed, saved, renew)
        return training.run(store, progress and processes.first)


def _refuse_what_cannot_work(
    network: CKN, samples: Samples, held_out: Samples | None, recipe: Recipe, *, renewed: bool
) -> None:
    for name, given in (("to train on", samples), ("for validation", held_out)):
        if given is not None and given.total() == 0:
            raise ValueError(f"there are no images {name}")
    if samples.per_pixel and (recipe.flip or recipe.shift):
        raise ValueError("flip and shift move images, but not the targets of their pixels; set flip = False and shift = 0")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError("all parameters of the network are frozen; network.requires_grad_() frees them")
    if samples.per_pixel and recipe.cross_fitting:
        raise ValueError("cross_fitting is for targets of whole images, not of their pixels; set cross_fitting = False")
    remembers = recipe.active_set or recipe.cross_fitting or recipe.solver == "miso"
    if renewed and (remembers or recipe.schedule == "halving"):
        needed = 'active_set = False, cross_fitting = False, solver = "lbfgs" and another schedule than "halving"'
        raise ValueError(f"renew needs {needed} in the recipe")


class _Alternation:
    """A training between its start, from the beginning or from a saved state, and its end."""

    def __init__(
        self,
        network: CKN,
        samples: Samples,
        validation: Samples | None,
        recipe: Recipe,
        regularization: float,
        seed: int,
        saved: TrainingState | None,
        renew: Callable[[int], tuple[Arrays, Arrays]] | None,
    ) -> None:
        self.network, self.samples, self.validation, self.recipe = network, samples, validation, recipe
        self.renew = renew
        self.device = samples.images.device
        self.epoch = self.failures = 0
        self.at_zero = math.inf  # the objective for W = 0
        self.factor, self.best_error = 1.0, math.inf  # of the learning rates, halved at each step back; on validation
        self.history: list[EpochRecord] = []
        self.begun = saved is not None
        # the number of epochs may grow
        settings = {name: value for name, value in recipe.to_dict().items() if name != "epochs"}
        self.settings = {**settings, "regularization": regularization, "images": samples.total()}
        if saved is not None:
            _refuse_other_settings(saved.numbers.get("settings", {}), self.settings)
            _load_network(network, saved)
        with torch.no_grad():  # all processes begin with the filters and frames of the first
            for tensor in network.state_dict(keep_vars=True).values():
                tensor.copy_(samples.processes.same(tensor))
        width = self._feature_width(samples)
        if validation is not None and self._feature_width(validation) != width:
            sizes = f"{tuple(validation.images.shape[1:])} and {tuple(samples.images.shape[1:])}"
            raise ValueError(f"images for validation and for training have different numbers of features, from {sizes}")
        tensors = None if saved is None else saved.tensors
        self.filter_step = FilterStep(
            network, samples, recipe, width=width, regularization=regularization, seed=seed, saved=tensors
        )
        self.linear = self.averaged_linear = LinearModel(self.filter_step.weights.detach().clone(), math.inf, math.inf, 0)
        if saved is None:
            network.train()
            with torch.no_grad():
                network.inverse_roots()  # moving frames must be near before a step is recorded
            self.linear_step = LinearStep.for_filters(network, samples, recipe, regularization)
        else:
            self.linear_step = LinearStep(recipe, regularization, saved.numbers["scale"])
            self._load(saved)
        self.filter_step.multiply_features(self.linear_step.scale)

    def _feature_width(self, samples: Samples) -> int:
        channels, *size = samples.images.shape[1:]
        config = self.network.config
        if channels != config.in_channels:
            raise ValueError(f"the images have {channels} channels, but the network takes {config.in_channels}")
        height, width = config.output_size(*size)
        if samples.per_pixel and samples.targets.shape[2:] != (height, width):
            wanted = tuple(samples.targets.shape[2:])
            raise ValueError(f"the targets have {wanted} pixels, but the last map of the network has {(height, width)}")
        filters = config.layers[-1].filters
        return filters if samples.per_pixel else filters * height * width

    def run(self, store: TrainingStore | None, progress: bool) -> TrainingResult:
        bar = tqdm(total=self.recipe.epochs, desc="training", unit="epoch", disable=None if progress else True)
        with bar:
            while self.epoch < self.recipe.epochs or not self.begun:
                record = self._one_epoch() if self.begun else self._first_fit()
                self.begun = True
                self.history.append(record)
                self._make_safe(record, store)
                shown = {"objective": "objective", "train": "train_error", "validation": "validation_error"}
                figures = {label: record[name] for label, name in shown.items()}
                figures = {label: value for label, value in figures.items() if value is not None and not math.isnan(value)}
                bar.set_postfix({label: f"{value:.4g}" for label, value in figures.items()}, refresh=False)
                bar.n = self.epoch
                bar.refresh()
        clock = Clock(self.device)
        model = self._model_at_the_end()
        clock.lap("closing")
        return TrainingResult(model, self.history, clock.seconds["closing"])

    # -- the alternation ----------------------------------------------------------------------------------------------

    def _first_fit(self) -> EpochRecord:
        clock = Clock(self.device)
        fit = self._fit_by_solver(0, None)
        self.at_zero = self.linear_step.loss_at_zero(self.samples)
        if not math.isfinite(fit.linear.objective):
            raise ValueError("the features of the network are not finite; check its filters")
        self._keep(fit.linear, fit.of_halves)
        self.averaged_linear = fit.linear
        if self.filter_step.average is not None:
            self.filter_step.average.restart()
        clock.lap("weights")
        return self._record(fit, accepted=True, clock=clock)

    def _one_epoch(self) -> EpochRecord:
        clock, before = Clock(self.device), self.filter_step.snapshot()
        if self.renew is not None and self.epoch:
            self._fill_samples(*self.renew(self.epoch))
            clock.lap("samples")
        fit = self._fit_of_an_epoch(clock)
        objective, halving = fit.linear.objective, self.recipe.schedule == "halving"
        diverged = not math.isfinite(objective) or (self._lost(objective) and not halving)
        accepted = not diverged and not (halving and objective > self.linear.objective)
        self.epoch += 1
        self.failures = self.failures + 1 if diverged else 0
        if accepted:
            self._keep(fit.linear, fit.of_halves)
            if self.filter_step.average is not None:
                self.averaged_linear = self._fit_averaged()
        else:
            self.filter_step.step_back(before)
            self.factor /= 2
        if diverged:
            self._report_divergence(objective)
        self.filter_step.end_epoch()
        return self._record(fit, accepted=accepted, clock=clock)

    def _fill_samples(self, images: Arrays, targets: Arrays) -> None:
        """In place, where a recorded step finds them."""
        outputs, old = self.samples.targets.shape[1], self.samples
        settings: dict[str, Any] = {"classification": self.recipe.classifies, "classes": outputs, "processes": old.processes}
        new = Samples.checked(images, targets, like=old.images, **settings)
        if new.images.shape != old.images.shape or new.targets.shape != old.targets.shape:
            shapes = f"{tuple(new.images.shape)} and {tuple(new.targets.shape)}"
            wanted = f"{tuple(old.images.shape)} and {tuple(old.targets.shape)}"
            raise ValueError(f"renew gave images and targets of shapes {shapes}, but the first ones have {wanted}")
        old.images.copy_(new.images)
        old.targets.copy_(new.targets)

    def _lost(self, objective: float) -> bool:
        before, gained = self.linear.objective, self.at_zero - self.linear.objective
        collapsed = gained > GAINED * self.at_zero and objective > before + LOST * gained
        return collapsed or objective > EXPLODED * self.at_zero

    def _fit_of_an_epoch(self, clock: Clock) -> Fit:
        """Steps (ii) and (i); the objective is NaN where they led to filters that no model can be built on."""
        fit = Fit(LinearModel(self.linear.weights, math.nan, math.nan, 0), math.nan, math.nan)
        try:
            loss_seen = self.filter_step.epoch(self.epoch, self.factor)
            clock.lap("filters")
            fit = self._fit_after_epoch(loss_seen)
        except ValueError:
            if self._filters_have_a_root():
                raise
        clock.lap("weights")
        return fit

    def _fit_after_epoch(self, loss_seen: float) -> Fit:
        if self._by_solver(self.epoch + 1):
            return self._fit_by_solver(self.epoch + 1, self.linear)
        weights = self.filter_step.weights.detach().clone()
        if self.recipe.schedule == "halving":
            return self.linear_step.judge(self.network, self.samples, weights)
        if not self._filters_have_a_root():  # the last step made them so: no loss has seen it
            loss_seen = math.nan
        if self.epoch + 1 == self.recipe.epochs:  # the last figures are exact
            return self.linear_step.judge(self.network, self.samples, weights)
        # another pass over the images would cost a third of the epoch
        objective = loss_seen + penalty(weights, self.linear_step.regularization)
        return Fit(LinearModel(weights, objective, math.nan, 0), loss_seen, math.nan)

    def _fit_by_solver(self, epoch: int, start: LinearModel | None) -> Fit:
        """W at the filters as they are after this epoch; with cross-fitting also of new halves of the samples."""
        halves = self.filter_step.halves
        second = None if halves is None else halves.deal(self.samples.total(), self.filter_step.generator)
        return self.linear_step.fit(self.network, self._seen_by_solver(epoch), start, second)

    def _seen_by_solver(self, epoch: int) -> Samples:
        """The samples from which W is found after this epoch."""
        return self.samples if epoch == self.recipe.epochs else self.samples.first(self.recipe.solver_samples)

    def _by_solver(self, epoch: int) -> bool:
        """Whether W is found by the solver after this epoch."""
        return self.recipe.weights == "solver" or (self.recipe.closing_fit and epoch == self.recipe.epochs)

    def _filters_have_a_root(self) -> bool:
        """False once they, or an alpha, are not finite, or all so alike that their kernel matrix cannot be inverted."""
        try:
            with torch.no_grad(), evaluating(self.network):
                self.network.inverse_roots()
        except ValueError:
            return False
        return all(math.isfinite(alpha) for alpha in _alphas(self.network))

    def _keep(self, linear: LinearModel, of_halves: Tensor | None = None) -> None:
        self.linear = linear
        with torch.no_grad():
            self.filter_step.weights.copy_(linear.weights)
        if self.filter_step.halves is not None and of_halves is not None:
            self.filter_step.halves.keep(of_halves)

    def _report_divergence(self, objective: float) -> None:
        found = f"the objective was {objective:.3g} after epoch {self.epoch}"
        if self.failures >= PATIENCE:
            raise TrainingDivergedError(
                f"training diverges: {found}, {self.failures} times in a row, at learning rates down to "
                f"{self.recipe.learning_rate * self.factor * 2:.2g}; lower learning_rate in the recipe"
            )
        if self.samples.processes.first:
            warnings.warn(f"{found}; the epoch is undone and the learning rate halved", RuntimeWarning, stacklevel=2)

    # -- the model that counts ----------------------------------------------------------------------------------------

    def _network_and_weights(self) -> tuple[CKN, Tensor]:
        """As they would be returned now, W for scaled features: averaged iterates, if the recipe asks for them."""
        average = self.filter_step.average
        if average is None:
            return self.network, self.linear.weights
        return average.averaged(self.network), self.averaged_linear.weights

    def _model(self) -> KernelModel:
        network, weights = self._network_and_weights()
        return KernelModel(network, weights * self.linear_step.scale, per_pixel=self.samples.per_pixel)

    def _fit_averaged(self) -> LinearModel:
        """W for the averaged filters."""
        average = self.filter_step.average
        assert average is not None
        if self._by_solver(self.epoch):
            seen = self._seen_by_solver(self.epoch)
            return self.linear_step.fit(average.averaged(self.network), seen, self.averaged_linear).linear
        return LinearModel(average.mean_of(self.filter_step.weights).clone(), math.nan, math.nan, 0)

    def _model_at_the_end(self) -> KernelModel:
        """The network that was given ends with the filters of the model."""
        if loses_digits(self.recipe.precision, self.device) and self._by_solver(self.recipe.epochs):
            self._fit_in_fp32()
        model = self._model()
        if model.network is not self.network:
            self.network.load_state_dict(model.network.state_dict())
            model.network = self.network
        self.network.eval()
        return model

    def _fit_in_fp32(self) -> None:
        """W for features as those who use the model compute them: features in bf16 differ from them alike for all images, and W
        found with these would make up for differences that are not there."""
        with precision("highest", self.device):
            if averaged := self.filter_step.average is not None:
                found = self._fit_averaged()
            else:
                found = self.linear_step.fit(self.network, self.samples, self.linear).linear
        if not math.isfinite(found.objective):
            raise TrainingDivergedError(
                "training ended with features that are not finite in fp32, though they are in bf16; train in fp32, with "
                'precision = "highest" in the recipe, or with a lower alpha_learning_rate'
            )
        if averaged:
            self.averaged_linear = found
        else:
            self.linear = found

    # -- figures and state --------------------------------------------------------------------------------------------

    def _record(self, fit: Fit, *, accepted: bool, clock: Clock) -> EpochRecord:
        (network, weights), validation_error = self._network_and_weights(), None
        if self.validation is not None:
            validation_error = self.linear_step.judge(network, self.validation, weights).error
        clock.lap("validation")
        rate = self.factor * self.recipe.rate(self.epoch / max(1, self.recipe.epochs))
        return {
            "epoch": self.epoch,
            "objective": fit.linear.objective,
            "loss": fit.loss,
            "train_error": fit.error,
            "validation_error": validation_error,
            "accepted": accepted,
            "learning_rate": self.recipe.learning_rate * rate,
            "active_fraction": self.filter_step.active.fraction(),
            "sample_gradients": self.filter_step.sample_gradients,
            "alphas": _alphas(network),
            "solver_iterations": fit.linear.iterations,
            "solver_gradient": fit.linear.gradient,
            "seconds": clock.seconds,
        }

    def _make_safe(self, record: EpochRecord, store: TrainingStore | None) -> None:
        error = record["validation_error"]
        best = error is not None and error < self.best_error
        if best:
            self.best_error = error
        state = self._state()  # all processes have a part in it
        if store is not None:
            store.record(record)
            if best:
                store.save_best(self._model())
            store.save_state(state)

    def _state(self) -> TrainingState:
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {"weights": self.linear.weights, "averaged_weights": self.averaged_linear.weights}
        duals = {"dual": self.linear.dual, "averaged_dual": self.averaged_linear.dual}
        tensors |= {name: dual for name, dual in duals.items() if dual is not None}
        numbers = {name: getattr(self, name) for name in NUMBERS}
        numbers |= {"sample_gradients": self.filter_step.sample_gradients, "scale": self.linear_step.scale}
        return TrainingState(
            tensors | self.filter_step.tensors(), {**numbers, "objective": self.linear.objective, "settings": self.settings}
        )

    def _load(self, saved: TrainingState) -> None:
        """The state of `_state`; network and filter step have theirs already."""
        tensors, numbers = saved.tensors, saved.numbers
        weights, averaged = (tensors[name].to(self.device) for name in ("weights", "averaged_weights"))
        self._keep(LinearModel(weights, numbers["objective"], math.nan, 0, tensors.get("dual")))
        self.averaged_linear = LinearModel(averaged, math.nan, math.nan, 0, tensors.get("averaged_dual"))
        self.filter_step.sample_gradients = numbers["sample_gradients"]
        for name in NUMBERS:
            setattr(self, name, numbers[name])


def _refuse_other_settings(saved: dict[str, Any], given: dict[str, Any]) -> None:
    for name, value in given.items():
        if saved.get(name) != value:
            raise ValueError(
                f"the saved state is that of a training with {name} = {saved.get(name)}, but {name} = {value} was given; "
                "give what it had, or start again in another place"
            )


def _load_network(network: CKN, saved: TrainingState) -> None:
    prefix = "network."
    state = {name.removeprefix(prefix): value for name, value in saved.tensors.items() if name.startswith(prefix)}
    try:
        network.load_state_dict(state)
    except RuntimeError:
        raise ValueError(
            "the saved state is that of another network, or of another version of sckn; start again in another folder"
        ) from None


def _alphas(network: CKN) -> list[float]:
    return [float(layer.log_alpha.detach().exp()) for layer in network.kernel_layers if layer.log_alpha is not None]
