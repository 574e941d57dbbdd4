"""Step (ii) of the alternation: an epoch of SGD on the filters, and with weights = "sgd" on W beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sckn.network import CKN
from sckn.training.active_set import ActiveSet
from sckn.training.augmentation import draw_moves
from sckn.training.averaging import IterateAverage
from sckn.training.batch_step import BatchStep
from sckn.training.halves import Halves
from sckn.training.preconditioner import preconditioners
from sckn.training.recipe import Recipe
from sckn.training.samples import Samples
from sckn.training.sphere import SphereSGD

__all__ = ["FilterStep"]

# Images whose patches the preconditioner is learned from.
PRECONDITIONING_IMAGES = 2000

# The most by which one gradient changes log(alpha), where those of the filters are clipped; alphas have no sphere to stay on.
LARGEST_ALPHA_CHANGE = 0.01


class FilterStep:
    """What SGD changes and needs: filters, alphas and frames of the network, W or the two of `Halves`, momentum, running means,
    the active set.

    All tensors keep their places, where a recorded step finds them.

    Parameters
    ----------
    network: trained in place. width: of its features.
    regularization: lambda, for W.
    saved: tensors of an interrupted training, of `tensors()`.
    """

    def __init__(
        self,
        network: CKN,
        samples: Samples,
        recipe: Recipe,
        *,
        width: int,
        regularization: float,
        seed: int,
        saved: dict[str, Tensor] | None = None,
    ) -> None:
        self.network, self.samples, self.recipe, self.processes = network, samples, recipe, samples.processes
        images = samples.images
        self.seed, self.generator = seed, torch.Generator().manual_seed(seed)
        self.active = ActiveSet(len(images), images.device, self.processes)
        self.weights = images.new_zeros(width, samples.targets.shape[1]).requires_grad_(recipe.weights == "sgd")
        self.halves = Halves(len(images), self.weights, self.processes) if recipe.cross_fitting else None
        self.preconditioners = self._preconditioners(saved)
        self.regularization, self.optimizer = regularization, self._optimizer()
        learned = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.average = IterateAverage(learned, recipe.averaging) if recipe.averaging else None
        for parameter in learned:  # momentum from the start, where the state of a training puts it
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.sample_gradients = 0  # of all epochs
        if saved is not None:
            self._load(saved)
        self._batch_step = BatchStep(
            network,
            self.weights,
            samples,
            self.active,
            recipe.loss_function,
            self.optimizer,
            shift=recipe.shift,
            sharpness=recipe.sharpness,
            average=self.average,
            halves=self.halves,
        )

    def _preconditioners(self, saved: dict[str, Tensor] | None) -> list[Tensor | None]:
        """Q of each layer; it belongs to the filters that training began with, so it is part of the state."""
        layers, images = range(len(self.network.kernel_layers)), self.samples.images
        if self.recipe.preconditioner is None:
            return [None for _ in layers]
        if saved is not None:
            return [saved[f"preconditioner.{index}"].to(images.device) for index in layers]
        count = self.samples.total()
        spread = torch.arange(0, count, max(1, count // PRECONDITIONING_IMAGES))[:PRECONDITIONING_IMAGES]
        shown = images[self.active.own(spread).to(images.device)]  # of all classes, also where images are sorted by them
        return list(preconditioners(self.network, shown, self.recipe.preconditioner, processes=self.processes))

    def _optimizer(self) -> SphereSGD:
        recipe, layers = self.recipe, self.network.kernel_layers
        # learning rates are on the device, so that a recorded step sees them change
        bases = (recipe.learning_rate, recipe.alpha_learning_rate, recipe.weights_learning_rate)
        self._rates = [(base, self.weights.new_zeros(())) for base in bases]
        self._decay = self.weights.new_zeros(())
        filter_rate, alpha_rate, weights_rate = (rate for _, rate in self._rates)
        groups: list[dict[str, Any]] = [
            {
                "params": [layer.filters],
                "lr": filter_rate,
                "preconditioner": Q,
                "clip": recipe.clip,
                "orthogonal": recipe.orthogonal,
            }
            for layer, Q in zip(layers, self.preconditioners, strict=True)
        ]
        alphas = [layer.log_alpha for layer in layers if layer.log_alpha is not None]
        if alphas:
            # of all steps in whose momentum a gradient is, at the highest rate
            steps = recipe.alpha_learning_rate / (1 - recipe.momentum)
            clip = None if recipe.clip is None else LARGEST_ALPHA_CHANGE / steps
            groups.append({"params": alphas, "lr": alpha_rate, "sphere": False, "clip": clip})
        if recipe.weights == "sgd":
            groups.append({"params": [self.weights], "lr": weights_rate, "sphere": False, "weight_decay": self._decay})
        return SphereSGD(groups, momentum=recipe.momentum)

    def multiply_features(self, scale: float) -> None:
        """By this, before W; to be told before the first step."""
        self._batch_step.scale = scale

    def set_rates(self, part: float) -> None:
        """The learning rates of the recipe, times `part`."""
        for base, rate in self._rates:
            rate.fill_(base * part)

    def step(self, index: Tensor, moves: Tensor | None, batch_size: int) -> None:
        """With the samples `index` of this process, of a batch of `batch_size` in all (see `BatchStep`)."""
        self._batch_step(index, moves, batch_size)

    def epoch(self, number: int, factor: float) -> float:
        """One pass over the active samples of all processes, the learning rates times `factor`.

        It returns the mean loss of all samples as the steps saw it: the inactive ones have none.
        """
        order = self.active.shuffled(self.generator)
        count, recipe, device = self.samples.total(), self.recipe, self.weights.device
        moves = draw_moves(count, recipe.flip, recipe.shift, self.generator)
        moves = None if moves is None else moves[self.processes.share].to(device)
        batches = order.to(device).split(recipe.batch_size) if len(order) else ()
        # Steps see the mean loss of active samples, larger than that of all; the penalty grows alike.
        self._decay.fill_(self.regularization * count / max(1, len(order)))
        self._batch_step.begin_epoch()
        self._batch_step.total_loss.zero_()
        self.network.train()
        with self._dropout_of_epoch(number):
            for done, batch in enumerate(batches):
                self.set_rates(factor * recipe.rate((number + done / len(batches)) / recipe.epochs))
                own = self.active.own(batch)
                self.step(own, None if moves is None else moves[own], len(batch))
        self.sample_gradients += len(order)
        return float(self.processes.sum(self._batch_step.total_loss)) / count

    @contextmanager
    def _dropout_of_epoch(self, number: int) -> Iterator[None]:
        """Dropout draws from PyTorch's own generator: here with numbers of this epoch and process, also when training goes
        on after an interruption; afterwards the generator is as it was."""
        if not any(layer.config.dropout for layer in self.network.kernel_layers):
            yield
            return
        device = self.weights.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(((self.seed << 32) + (number << 12) + self.processes.rank) % 2**63)
            yield

    def end_epoch(self) -> None:
        """Samples come back into the active set; without one, all."""
        if self.recipe.active_set:
            self.active.reactivate(self.recipe.reactivation, self.generator)
        else:
            self.active.flags.fill_(True)

    # -- back-tracking ------------------------------------------------------------------------------------------------

    def snapshot(self) -> list[tuple[Tensor, Tensor]]:
        """What an epoch changes, each tensor with its present values."""
        changing = [*self.network.state_dict(keep_vars=True).values(), self.weights, self.active.flags, *self._means()]
        changing += [] if self.halves is None else [self.halves.weights, self.halves.second]
        return [(tensor, tensor.detach().clone()) for tensor in changing]

    def step_back(self, before: list[tuple[Tensor, Tensor]]) -> None:
        """As it was at the snapshot; the momentum is forgotten."""
        with torch.no_grad():
            for tensor, values in before:
                tensor.copy_(values)
            for buffer in self._momentum():
                buffer.zero_()

    # -- interruption -------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """What to go on from, but for W and the network; all processes have a part in it."""
        tensors = {"active": self.active.all_flags(), "generator": self.generator.get_state()}
        tensors |= {f"momentum.{index}": buffer for index, buffer in enumerate(self._momentum())}
        if self.halves is not None:
            tensors |= {"halves.weights": self.halves.weights, "halves.second": self.processes.interleaved(self.halves.second)}
        tensors |= {f"preconditioner.{index}": Q for index, Q in enumerate(self.preconditioners) if Q is not None}
        return tensors | {f"mean.{index}": mean for index, mean in enumerate(self._means())}

    def _load(self, saved: dict[str, Tensor]) -> None:
        self.active.flags.copy_(saved["active"][self.processes.share])
        self.generator.set_state(saved["generator"].cpu())
        if self.halves is not None:
            self.halves.second.copy_(saved["halves.second"][self.processes.share])
            self.halves.keep(saved["halves.weights"])
        for index, buffer in enumerate(self._momentum()):
            buffer.copy_(saved[f"momentum.{index}"])
        for index, mean in enumerate(self._means()):
            mean.copy_(saved[f"mean.{index}"])

    def _means(self) -> list[Tensor]:
        return [] if self.average is None else self.average.means

    def _momentum(self) -> list[Tensor]:
        return [
            self.optimizer.state[parameter]["momentum_buffer"]
            for group in self.optimizer.param_groups
            for parameter in group["params"]
        ]
