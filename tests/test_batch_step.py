"""A step with one batch against the gradient of the plain objective and the update of the paper, written out by hand."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from sckn.inverse_root import InverseRoot
from sckn.kernels import Exponential
from sckn.layer import LayerConfig
from sckn.losses import Logistic, Loss, Square, SquaredHinge
from sckn.network import CKN, NetworkConfig
from sckn.precision import precision
from sckn.training.active_set import ActiveSet
from sckn.training.augmentation import draw_moves, moved_images
from sckn.training.averaging import IterateAverage
from sckn.training.batch_step import BatchStep
from sckn.training.halves import Halves
from sckn.training.samples import Samples
from sckn.training.sphere import SphereSGD

LAMBDA, SCALE = 0.07, 1.7
FILTER_RATE, ALPHA_RATE, WEIGHTS_RATE = 0.3, 0.05, 0.02
BATCHES = [[3, 0, 7, 9], [1, 2, 4, 8], [5, 6, 10]]


@dataclass
class Setting:
    """Everything a step needs."""

    network: CKN
    weights: Tensor
    samples: Samples
    active: ActiveSet
    optimizer: SphereSGD
    average: IterateAverage
    step: BatchStep
    preconditioners: list[Tensor | None]

    def learned(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def state(self) -> list[Tensor]:
        """All that a step changes."""
        momentum = [state["momentum_buffer"] for state in self.optimizer.state.values() if "momentum_buffer" in state]
        changing = [*self.network.state_dict().values(), self.weights, self.active.flags, self.step.total_loss]
        return [tensor.detach().clone() for tensor in (*changing, *self.average.means, *momentum)]


def setting(
    *,
    loss: Loss | None = None,
    per_pixel: bool = False,
    momentum: float = 0.0,
    learn_weights: bool = False,
    preconditioned: bool = False,
    inverse_root: InverseRoot = "eigh",
    shift: int = 0,
    sharpness: float = 0.0,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> Setting:
    """Two layers, of which the first learns its alpha, and 11 images of 6 x 6, the same each time."""
    torch.manual_seed(7)
    layers = (
        LayerConfig(5, 3, subsampling=2, kernel=Exponential(3.0, learnable=True), inverse_root=inverse_root),
        LayerConfig(4, 2, inverse_root=inverse_root),
    )
    network = CKN(NetworkConfig(2, layers)).to(device, dtype).train()
    with torch.no_grad():
        for layer in network.kernel_layers:  # of unit norm in this type
            layer.filters.div_(torch.linalg.vector_norm(layer.filters, dim=(1, 2, 3), keepdim=True))
    images = torch.randn(11, 2, 6, 6, dtype=torch.float64)
    targets = torch.randn(11, 3, 3, 3) if per_pixel else torch.randn(11, 3)
    targets = targets if isinstance(loss, Square) else targets.sign()
    samples = Samples(images.to(device, dtype), targets.to(device, dtype))
    width = 4 if per_pixel else 36
    weights = torch.randn(width, 3, dtype=torch.float64).to(device, dtype).requires_grad_(learn_weights)
    preconditioners: list[Tensor | None] = [None, None]
    if preconditioned:
        factors = [torch.randn(d, d, dtype=torch.float64).to(device, dtype) for d in (18, 20)]
        preconditioners = [factor @ factor.T + torch.eye(len(factor)).to(factor) for factor in factors]

    def rate(value: float) -> Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    groups: list[dict[str, Any]] = [
        {"params": [layer.filters], "lr": rate(FILTER_RATE), "preconditioner": Q}
        for layer, Q in zip(network.kernel_layers, preconditioners, strict=True)
    ]
    groups.append({"params": [network.kernel_layers[0].log_alpha], "lr": rate(ALPHA_RATE), "sphere": False})
    if learn_weights:
        groups.append({"params": [weights], "lr": rate(WEIGHTS_RATE), "sphere": False, "weight_decay": LAMBDA})
    optimizer = SphereSGD(groups, momentum=momentum)
    active = ActiveSet(11, weights.device)
    average = IterateAverage([parameter for group in groups for parameter in group["params"]], 0.9)
    step = BatchStep(
        network,
        weights,
        samples,
        active,
        SquaredHinge() if loss is None else loss,
        optimizer,
        scale=SCALE,
        shift=shift,
        sharpness=sharpness,
        average=average,
    )
    return Setting(network, weights, samples, active, optimizer, average, step, preconditioners)


def written_out(loss: Loss, targets: Tensor, scores: Tensor) -> Tensor:
    """The formulas of the losses."""
    if isinstance(loss, SquaredHinge):
        return torch.relu(1 - targets * scores) ** 2
    if isinstance(loss, Logistic):
        return torch.log1p(torch.exp(-targets * scores))
    return (targets - scores) ** 2 / 2


def plain_objective(given: Setting, loss: Loss, images: Tensor, targets: Tensor) -> Tensor:
    """(1/n) sum_i sum_c L(y_ic, <W_c, features of x_i>) + (lambda/2) |W|^2; i counts images, or their pixels."""
    maps = given.network(images) * SCALE
    if targets.dim() == 4:
        scores = torch.einsum("bphw,pc->bchw", maps, given.weights)
        count = targets.shape[0] * targets.shape[2] * targets.shape[3]
    else:
        scores, count = maps.reshape(len(maps), -1) @ given.weights, len(maps)
    return written_out(loss, targets, scores).sum() / count + LAMBDA / 2 * (given.weights**2).sum()


def step_by_hand(given: Setting, gradients: list[Tensor], memory: list[Tensor], momentum: float) -> list[Tensor]:
    """Filters, alpha and W after a step; `memory`, the momentum, is changed."""
    found = []
    rates = [FILTER_RATE, FILTER_RATE, ALPHA_RATE, WEIGHTS_RATE]
    for number, (parameter, gradient) in enumerate(zip(given.learned(), gradients, strict=True)):
        value = parameter.detach()
        if number < 2:
            new, carried = [], []
            Q = given.preconditioners[number]
            for z, g, m in zip(value.flatten(1), gradient.flatten(1), memory[number].flatten(1), strict=True):
                Q_ = torch.eye(len(z), dtype=z.dtype) if Q is None else Q
                direction = Q_ @ g - (z @ Q_ @ g) / (z @ Q_ @ z) * (Q_ @ z)
                m = momentum * m + direction
                moved = z - rates[number] * m
                moved = moved / moved.norm()
                new.append(moved)
                carried.append(m - (m @ moved) * moved)
            found.append(torch.stack(new).view_as(value))
            memory[number] = torch.stack(carried).view_as(value)
        else:
            memory[number] = momentum * memory[number] + gradient
            found.append(value - rates[number] * memory[number])
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("learn_weights", [False, True], ids=["W fixed", "W learned"])
@pytest.mark.parametrize("per_pixel", [False, True], ids=["images", "pixels"])
@pytest.mark.parametrize("loss", [SquaredHinge(), Logistic(), Square()], ids=["squared hinge", "logistic", "square"])
def test_steps_are_those_of_the_paper(loss: Loss, per_pixel: bool, learn_weights: bool, momentum: float) -> None:
    given = setting(loss=loss, per_pixel=per_pixel, momentum=momentum, learn_weights=learn_weights)
    memory = [torch.zeros_like(parameter) for parameter in given.learned()]
    seen = 0.0
    for batch in BATCHES:
        index = torch.tensor(batch)
        objective = plain_objective(given, loss, given.samples.images[index], given.samples.targets[index])
        gradients = list(torch.autograd.grad(objective, given.learned()))
        expected = step_by_hand(given, gradients, memory, momentum)
        seen += len(batch) * float(objective.detach() - LAMBDA / 2 * given.weights.detach().square().sum())
        means = [mean.clone() for mean in given.average.means]
        W = given.weights.detach().clone()

        given.step(index, None, len(batch))

        for parameter, value, before, mean in zip(given.learned(), expected, means, given.average.means, strict=True):
            torch.testing.assert_close(parameter.detach(), value, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(mean, 0.9 * before + 0.1 * value, rtol=1e-12, atol=1e-12)
        assert float(given.step.total_loss) == pytest.approx(seen, rel=1e-12)
        assert torch.equal(given.weights.detach(), W) != learn_weights


def test_a_preconditioner_acts_as_in_appendix_c() -> None:
    given = setting(momentum=0.9, preconditioned=True)
    memory = [torch.zeros_like(parameter) for parameter in given.learned()]
    for batch in BATCHES:
        index = torch.tensor(batch)
        objective = plain_objective(given, SquaredHinge(), given.samples.images[index], given.samples.targets[index])
        expected = step_by_hand(given, list(torch.autograd.grad(objective, given.learned())), memory, 0.9)
        given.step(index, None, len(batch))
        for parameter, value in zip(given.learned(), expected, strict=True):
            torch.testing.assert_close(parameter.detach(), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("radius", [1e-3, 0.4])
def test_a_sharp_minimum_is_seen_from_uphill(radius: float) -> None:
    """The gradient of a step is the one at the filters moved along theirs, all layers together; the step itself starts from
    the filters."""
    given = setting(momentum=0.9, learn_weights=True, sharpness=radius)
    memory = [torch.zeros_like(parameter) for parameter in given.learned()]
    for batch in BATCHES:
        index = torch.tensor(batch)

        def gradients_here(index: Tensor = index) -> tuple[float, list[Tensor]]:
            objective = plain_objective(given, SquaredHinge(), given.samples.images[index], given.samples.targets[index])
            return float(objective.detach()), list(torch.autograd.grad(objective, given.learned()))

        before = [layer.filters.detach().clone() for layer in given.network.kernel_layers]
        here, gradients = gradients_here()
        tangent = [
            torch.stack([g - (g @ z) * z for z, g in zip(Z.flatten(1), G.flatten(1), strict=True)])
            for Z, G in zip(before, gradients[:2], strict=True)
        ]
        length = torch.cat([rows.flatten() for rows in tangent]).norm()
        with torch.no_grad():
            for layer, Z, rows in zip(given.network.kernel_layers, before, tangent, strict=True):
                moved = Z.flatten(1) + radius * rows / length
                layer.filters.copy_((moved / moved.norm(dim=1, keepdim=True)).view_as(Z))
        there, gradients = gradients_here()
        assert there > here
        with torch.no_grad():
            for layer, Z in zip(given.network.kernel_layers, before, strict=True):
                layer.filters.copy_(Z)
        expected = step_by_hand(given, gradients, memory, 0.9)
        seen, W = float(given.step.total_loss), given.weights.detach().clone()

        given.step(index, None, len(batch))

        for parameter, value in zip(given.learned(), expected, strict=True):
            torch.testing.assert_close(parameter.detach(), value, rtol=1e-11, atol=1e-11)
        counted = len(batch) * (here - LAMBDA / 2 * float(W.square().sum()))  # once, where the filters are
        assert float(given.step.total_loss) - seen == pytest.approx(counted, rel=1e-11)


def test_a_sample_meets_the_model_of_the_other_half() -> None:
    given, halves = setting(), Halves(11, torch.zeros(36, 3, dtype=torch.float64))
    given.step.halves = halves
    second = torch.tensor([True, False, False, True, False, True, False, True, True, False, False])
    halves.keep(torch.randn(2, 36, 3, dtype=torch.float64))
    halves.second.copy_(second)
    memory = [torch.zeros_like(parameter) for parameter in given.learned()]
    for batch in BATCHES:
        index = torch.tensor(batch)
        total = torch.zeros((), dtype=torch.float64)
        for sample in batch:
            features = given.network(given.samples.images[sample : sample + 1]).flatten() * SCALE
            W = halves.weights[0 if second[sample] else 1]
            total = total + (torch.relu(1 - given.samples.targets[sample] * (features @ W)) ** 2).sum()
        expected = step_by_hand(given, list(torch.autograd.grad(total / len(batch), given.learned())), memory, 0.0)
        given.step(index, None, len(batch))
        for parameter, value in zip(given.learned(), expected, strict=True):
            torch.testing.assert_close(parameter.detach(), value, rtol=1e-12, atol=1e-12)


def test_where_no_sample_has_a_gradient_uphill_is_nowhere() -> None:
    given = setting(sharpness=0.5)
    with torch.no_grad():
        given.samples.targets.zero_()
    before = given.state()
    given.step(torch.arange(4), None, 4)
    for found, expected in zip(given.state()[:4], before[:4], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


def test_a_step_descends_along_central_differences() -> None:
    """The gradient once more, without autograd: alpha and W move by it."""
    given = setting(learn_weights=True)
    index = torch.arange(11)
    W, log_alpha = given.weights.detach().clone(), given.network.kernel_layers[0].log_alpha
    assert log_alpha is not None
    alpha = float(log_alpha.detach())

    def objective() -> float:
        with torch.no_grad():
            return float(plain_objective(given, SquaredHinge(), given.samples.images, given.samples.targets))

    slopes = {}
    with torch.no_grad():
        for place in [(0, 0), (17, 1), (35, 2)]:
            around = []
            for h in (1e-6, -1e-6):
                given.weights[place] += h
                around.append(objective())
                given.weights.copy_(W)
            slopes[place] = (around[0] - around[1]) / 2e-6
        around = []
        for h in (1e-6, -1e-6):
            log_alpha.fill_(alpha + h)
            around.append(objective())
        log_alpha.fill_(alpha)
    given.step(index, None, 11)
    assert float(log_alpha.detach()) == pytest.approx(alpha - ALPHA_RATE * (around[0] - around[1]) / 2e-6, rel=1e-7)
    for place, slope in slopes.items():
        assert float(given.weights[place].detach()) == pytest.approx(float(W[place]) - WEIGHTS_RATE * slope, rel=1e-7)


def test_a_step_sees_the_images_moved() -> None:
    moves = draw_moves(11, True, 2, torch.Generator().manual_seed(0))
    assert moves is not None
    given, reference = setting(shift=2), setting()
    reference.samples.images.copy_(moved_images(reference.samples.images, moves, 2))
    index = torch.tensor(BATCHES[0])
    given.step(index, moves[index], 4)
    reference.step(index, None, 4)
    for found, expected in zip(given.state(), reference.state(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_samples_without_a_gradient_leave_the_active_set() -> None:
    """Others of the batch stay in it, or come back; those of other batches are as they were."""
    given = setting()
    with torch.no_grad():
        scores = (given.network(given.samples.images) * SCALE).flatten(1) @ given.weights
    given.samples.targets[[0, 3]] = scores[[0, 3]].sign()
    given.weights.detach().mul_(1 / scores[[0, 3]].abs().min() + 1e-6)  # their margins are all above 1, if only just
    with torch.no_grad():
        scores = (given.network(given.samples.images) * SCALE).flatten(1) @ given.weights
    idle = ((given.samples.targets * scores) >= 1).all(dim=1)
    assert idle[[0, 3]].all()
    assert not idle[[7, 9]].any()
    given.active.flags[[5, 7]] = False
    given.step(torch.tensor([3, 0, 7, 9]), None, 4)
    assert given.active.flags.tolist() == [number not in (0, 3, 5) for number in range(11)]


def test_per_pixel_targets_leave_all_samples_active() -> None:
    given = setting(per_pixel=True, loss=Square())
    with torch.no_grad():
        maps = given.network(given.samples.images) * SCALE
        given.samples.targets.copy_(torch.einsum("bphw,pc->bchw", maps, given.weights))
    given.step(torch.arange(11), None, 11)
    assert given.active.flags.all()


def test_an_empty_batch_moves_no_filter() -> None:
    given = setting()
    before = given.state()
    given.step(torch.tensor([], dtype=torch.long), None, 1)
    for found, expected in zip(given.state()[:-3], before[:-3], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_backward_pass_is_outside_autocast() -> None:
    """Inside it products of p x p matrices would lose digits that the forward pass kept."""
    seen = []

    class Spy(SquaredHinge):
        def __call__(self, targets: Tensor, scores: Tensor) -> Tensor:
            seen.append(scores.dtype)
            scores.register_hook(lambda gradient: seen.append(torch.is_autocast_enabled("cpu")))
            return super().__call__(targets, scores)

    given = setting(loss=Spy(), dtype=torch.float32)
    with precision("medium", torch.device("cpu")):
        given.step(torch.tensor([0, 1]), None, 2)
    assert seen == [torch.float32, False]


GPU_BATCHES = [[3, 0, 7, 9], [1, 2, 4, 8], [5, 6, 10, 0], [9, 2, 1, 3], [5, 6, 10]]  # the last is smaller


@pytest.mark.gpu
@pytest.mark.parametrize("inverse_root", ["newton_schulz", "moving_frame"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize(
    ("learn_weights", "sharpness", "crossed"),
    [(False, 0.0, False), (True, 0.0, False), (False, 0.1, False), (False, 0.0, True)],
    ids=["W fixed", "W learned", "from uphill", "halves"],
)
def test_a_recorded_step_is_the_same_step(
    inverse_root: InverseRoot, dtype: torch.dtype, tolerance: float, learn_weights: bool, sharpness: float, crossed: bool
) -> None:
    """Filters, frames, W, momentum, averages, active set and loss, step after step, also as the learning rates change."""
    kind: dict[str, Any] = {"inverse_root": inverse_root, "dtype": dtype, "learn_weights": learn_weights, "device": "cuda"}
    kind["sharpness"] = sharpness
    recorded, eager = (setting(momentum=0.9, shift=1, **kind) for _ in range(2))
    moves = draw_moves(11, True, 1, torch.Generator().manual_seed(0))
    assert moves is not None
    moves = moves.cuda()
    for given in (recorded, eager):
        for parameter in given.learned():
            given.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        with torch.no_grad():
            given.network.inverse_roots()
            given.samples.targets[3] = 0  # a sample whose loss has no gradient
            if crossed:
                given.step.halves = Halves(11, given.weights)
                given.step.halves.keep(torch.stack([given.weights, -given.weights]))
                given.step.halves.second.copy_(torch.arange(11, device="cuda") % 2 == 0)
    before = recorded.state()
    for number, batch in enumerate(GPU_BATCHES):
        index = torch.tensor(batch, device="cuda")
        for given in (recorded, eager):
            for group in given.optimizer.param_groups:
                group["lr"].mul_(0.8)
            if given.step.halves is not None and number == 2:  # as after an epoch
                given.step.halves.keep(given.step.halves.weights * 0.7)
                given.step.halves.deal(11, torch.Generator().manual_seed(0))
        recorded.step(index, moves[index], len(batch))
        eager.step._compute(index, moves[index], len(batch))
        for found, expected in zip(recorded.state(), eager.state(), strict=True):
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=f"step {number}")
    assert recorded.step._recorded is not None
    assert eager.step._recorded is None
    assert torch.nonzero(~recorded.active.flags).flatten().tolist() == [3]
    assert not all(torch.equal(old, new) for old, new in zip(before, recorded.state(), strict=True))


@pytest.mark.gpu
def test_an_eigendecomposition_is_not_recorded() -> None:
    given, reference = (setting(momentum=0.9, device="cuda") for _ in range(2))
    for batch in GPU_BATCHES:
        index = torch.tensor(batch, device="cuda")
        given.step(index, None, len(batch))
        reference.step._compute(index, None, len(batch))
    assert given.step._recorded is None
    for found, expected in zip(given.state(), reference.state(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
def test_recording_costs_no_memory_of_its_own_each_time() -> None:
    """Replays allocate nothing."""
    given = setting(momentum=0.9, inverse_root="newton_schulz", device="cuda")
    for parameter in given.learned():
        given.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    index = torch.tensor([0, 1, 2, 3], device="cuda")
    given.step(index, None, 4)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        given.step(index, None, 4)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
