"""One batch of step (ii): gradient of the loss, and a step of the filters on the sphere.

On a GPU the whole step is recorded once as a CUDA graph and then replayed, because for small networks the time goes
into launching a thousand small kernels; nothing in it waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sckn.inverse_root import iterations_in_graphs
from sckn.losses import Loss
from sckn.model import feature_rows
from sckn.network import CKN
from sckn.precision import without_autocast
from sckn.training.active_set import ActiveSet
from sckn.training.augmentation import moved_images
from sckn.training.averaging import IterateAverage
from sckn.training.halves import Halves
from sckn.training.samples import Samples
from sckn.training.sharpness import uphill
from sckn.training.sphere import SphereSGD

__all__ = ["BatchStep"]

# More than the inverse roots need when a step is recorded, since filters may become more alike, and uphill are others.
SPARE_ITERATIONS, SPARE_UPHILL = 1, 2


class BatchStep:
    """One step for a batch of the samples that this process holds.

    Parameters
    ----------
    network: trained in place by `optimizer`, which may hold `weights`, too.
    weights: W (d, outputs), for features times `scale`.
    samples: those of this process. active: cleared for samples whose loss has no gradient.
    shift: the largest of the moves given to a step. sharpness: how far uphill the gradient is taken (`uphill`).
    average: updated after each step. halves: the models to use instead of W.
    """

    def __init__(
        self,
        network: CKN,
        weights: Tensor,
        samples: Samples,
        active: ActiveSet,
        loss: Loss,
        optimizer: SphereSGD,
        *,
        scale: float = 1.0,
        shift: int = 0,
        sharpness: float = 0.0,
        average: IterateAverage | None = None,
        halves: Halves | None = None,
    ) -> None:
        self.network, self.weights, self.samples, self.active = network, weights, samples, active
        self.loss, self.optimizer, self.scale, self.shift, self.average = loss, optimizer, scale, shift, average
        self.sharpness, self.halves = sharpness, halves
        self.total_loss = torch.zeros((), dtype=torch.float64, device=weights.device)
        self._recorded: _RecordedStep | None = None

    def begin_epoch(self) -> None:
        """Have the step recorded again if the filters need more iterations of the inverse roots than it runs."""
        if self._recorded is not None and self.network.root_iterations() >= self._recorded.iterations:
            self._recorded = None

    def __call__(self, index: Tensor, moves: Tensor | None, batch_size: int) -> None:
        """A step with the samples `index`, moved as `moves` (len(index), 3) says, of a batch that has `batch_size` samples
        in all processes together. All are on the device of the images.

        `total_loss` grows by their losses.
        """
        if self._recorded is None and self._recordable():
            with torch.cuda.device(self.weights.device):
                self._recorded = self._record(index, moves, batch_size)
        if self._recorded is not None and len(self._recorded.index) == len(index):
            self._recorded.replay(index, moves)
        else:  # also the last batch of an epoch, if it is smaller
            self._compute(index, moves, batch_size)

    def _recordable(self) -> bool:
        """On one GPU, unless a layer needs an eigendecomposition, which a CUDA graph cannot hold."""
        roots = {layer.config.inverse_root for layer in self.network.kernel_layers}
        return self.weights.is_cuda and self.samples.processes.count == 1 and "eigh" not in roots

    def _compute(self, index: Tensor, moves: Tensor | None, batch_size: int) -> None:
        self._gradients(index, moves, batch_size, counted=True)
        if self.sharpness:
            with uphill([layer.filters for layer in self.network.kernel_layers], self.sharpness):
                self._gradients(index, moves, batch_size, counted=False)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    def _gradients(self, index: Tensor, moves: Tensor | None, batch_size: int, *, counted: bool) -> None:
        """Those of the mean loss of the batch, in `grad` of all that is learned; `counted` in `total_loss` and `active`."""
        self.optimizer.zero_grad(set_to_none=True)
        if len(index):
            maps = self.network(moved_images(self.samples.images[index], moves, self.shift))
            per_pixel = self.samples.per_pixel
            with without_autocast(maps.device):
                features = feature_rows(maps, per_pixel).to(self.weights.dtype) * self.scale
                scores = features @ self.weights if self.halves is None else self.halves.scores(features, index)
            rows = feature_rows(self.samples.targets[index], per_pixel)
            pixels = len(rows) // len(index)  # the objective is a mean over rows
            losses = self.loss(rows, scores).sum() / pixels
            with without_autocast(maps.device):  # each product as precise as in the forward pass
                (losses / batch_size).backward()
            with torch.no_grad():
                if counted:
                    self.total_loss += losses
                if counted and not per_pixel:
                    self.active.flags[index] = ~self.loss.gradient_is_zero(rows, scores)
        else:
            with torch.no_grad():  # moving frames turn here, too, and filters without a root fail in all processes
                self.network.inverse_roots()
        self._share_gradients()

    def _share_gradients(self) -> None:
        """Sum the gradients over the processes, all in one message."""
        if self.samples.processes.count == 1:
            return
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for parameter in parameters:
            if parameter.grad is None:  # no sample of this batch is here
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters]
        total = self.samples.processes.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _record(self, index: Tensor, moves: Tensor | None, batch_size: int) -> "_RecordedStep":
        """The step for batches of this size as a CUDA graph; what the trial steps changed is put back."""
        changing = [*self.network.state_dict(keep_vars=True).values(), self.weights, self.active.flags, self.total_loss]
        changing += self.average.means if self.average is not None else []
        before = [tensor.detach().clone() for tensor in changing]
        iterations = self.network.root_iterations() + SPARE_ITERATIONS + (SPARE_UPHILL if self.sharpness else 0)
        momentum = {parameter: state["momentum_buffer"].clone() for parameter, state in self.optimizer.state.items() if state}
        index, moves = index.clone(), None if moves is None else moves.clone()
        random = torch.cuda.get_rng_state(self.weights.device)  # dropout draws from it
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their algorithms, caches fill
                self._compute(index, moves, batch_size)
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with iterations_in_graphs(iterations), torch.cuda.graph(graph):
            self._compute(index, moves, batch_size)
        torch.cuda.set_rng_state(random, self.weights.device)
        with torch.no_grad():
            for tensor, value in zip(changing, before, strict=True):
                tensor.copy_(value)
            for parameter, state in self.optimizer.state.items():
                state["momentum_buffer"].copy_(momentum.get(parameter, torch.zeros_like(parameter)))
        return _RecordedStep(graph, index, moves, iterations)


@dataclass(frozen=True)
class _RecordedStep:
    """A CUDA graph, the tensors that it reads its batch from, and the iterations of the inverse roots in it."""

    graph: torch.cuda.CUDAGraph
    index: Tensor
    moves: Tensor | None
    iterations: int

    def replay(self, index: Tensor, moves: Tensor | None) -> None:
        self.index.copy_(index)
        if self.moves is not None and moves is not None:
            self.moves.copy_(moves)
        self.graph.replay()
