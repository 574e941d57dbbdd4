"""How filters and linear model are trained together: the settings of section 3.2, the paper's choices or others."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

from sckn.linear import Solver
from sckn.losses import Logistic, Loss, Square, SquaredHinge
from sckn.precision import Precision
from sckn.settings import check_names, one_of, real_number, true_or_false, whole_number

__all__ = ["Recipe", "Schedule"]

Schedule = Literal["halving", "constant", "linear", "cosine"]
LossName = Literal["squared_hinge", "logistic", "square"]
Weights = Literal["solver", "sgd"]

LOSSES: dict[LossName, Loss] = {"squared_hinge": SquaredHinge(), "logistic": Logistic(), "square": Square()}


@dataclass(frozen=True)
class Recipe:
    """The settings of `train_supervised`. One that belongs to what is not in use, such as `reactivation` without an active
    set, is ignored.

    Parameters
    ----------
    epochs: passes over the (active) samples. batch_size: samples in a step, over all processes.
    learning_rate, momentum: of SGD on the sphere.
    schedule: "halving" is the paper's: an epoch after which the objective is higher is undone and the rate halved;
        "cosine" and "linear" let the rate fall to 0 over the epochs; "constant". warmup: epochs over which it first rises.
    clip: the largest norm of a filter's gradient on the sphere, to which longer ones are shortened; with it, one gradient
        changes no alpha by more than 1 %, either. None is no limit.
    orthogonal: steps of a layer's filters are orthogonal as a matrix (see `SphereSGD`), and `learning_rate` is their length.
    loss: "squared_hinge", "logistic" or "square".
    weights: W is found by the convex "solver" after each epoch, or learned in the same steps by "sgd".
    cross_fitting: beside W two models are found, each from a random half of the samples, drawn anew after each epoch, and
        steps see a sample with the one that was found without it. It keeps a wide network from learning its samples by heart.
        With W by L-BFGS, without the active set and "halving", for classification.
    solver: "lbfgs" or "miso". solver_tolerance: its relative gradient.
    solver_samples: with the square loss, how many samples W is found from between epochs, the first ones; after the last epoch
        all are used. A linear model of few numbers needs no more, and encoding all takes a quarter of the time. None is all.
    weights_learning_rate: of W, with weights = "sgd". closing_fit: then the solver finds W after the last epoch.
    alpha_learning_rate: of log(alpha), where a kernel's alpha is learnable.
    active_set: a sample whose loss has no gradient is left out until `reactivation`, the part of such samples that come
        back after each epoch, picks it.
    averaging: decay, for each step, of a running mean of the iterates, which is then the model; 0 is no averaging.
    sharpness: the gradient is taken not at the filters but where the loss is highest at this distance from them
        (sharpness-aware minimisation), at twice the cost; 0 is at the filters. With an active set, samples without a gradient
        at the filters are left out of both.
    flip: mirror images at random. shift: move them by up to so many pixels each way at random.
    preconditioner: damping of the matrix Q (see `preconditioners`); None is no preconditioner.
    feature_norm: features are scaled once, before training, to this mean norm, which gives lambda its meaning.
    precision: of training, "highest" (fp32), "high" (TF32) or "medium" (bf16). The last W of the solver is for fp32 always.
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    schedule: Schedule = "halving"
    warmup: float = 0.0
    clip: float | None = None
    orthogonal: bool = False
    loss: LossName = "squared_hinge"
    weights: Weights = "solver"
    cross_fitting: bool = False
    solver: Solver = "lbfgs"
    solver_tolerance: float = 1e-3
    solver_samples: int | None = None
    weights_learning_rate: float = 1e-3
    closing_fit: bool = False
    alpha_learning_rate: float = 1e-2
    active_set: bool = True
    reactivation: float = 0.1
    averaging: float = 0.0
    sharpness: float = 0.0
    flip: bool = False
    shift: int = 0
    preconditioner: float | None = None
    feature_norm: float = 10.0
    precision: Precision = "high"

    def __post_init__(self) -> None:
        checked = {
            "epochs": whole_number("epochs", self.epochs, least=0),
            "batch_size": whole_number("batch_size", self.batch_size),
            "learning_rate": real_number("learning_rate", self.learning_rate, above=0),
            "momentum": real_number("momentum", self.momentum, least=0, below=1),
            "schedule": one_of("schedule", self.schedule, get_args(Schedule)),
            "warmup": real_number("warmup", self.warmup, least=0),
            "orthogonal": true_or_false("orthogonal", self.orthogonal),
            "loss": one_of("loss", self.loss, get_args(LossName)),
            "weights": one_of("weights", self.weights, get_args(Weights)),
            "cross_fitting": true_or_false("cross_fitting", self.cross_fitting),
            "solver": one_of("solver", self.solver, get_args(Solver)),
            "solver_tolerance": real_number("solver_tolerance", self.solver_tolerance, above=0),
            "weights_learning_rate": real_number("weights_learning_rate", self.weights_learning_rate, above=0),
            "closing_fit": true_or_false("closing_fit", self.closing_fit),
            "alpha_learning_rate": real_number("alpha_learning_rate", self.alpha_learning_rate, above=0),
            "active_set": true_or_false("active_set", self.active_set),
            "reactivation": real_number("reactivation", self.reactivation, least=0, below=1 + 1e-9),
            "averaging": real_number("averaging", self.averaging, least=0, below=1),
            "sharpness": real_number("sharpness", self.sharpness, least=0),
            "flip": true_or_false("flip", self.flip),
            "shift": whole_number("shift", self.shift, least=0),
            "feature_norm": real_number("feature_norm", self.feature_norm, above=0),
            "precision": one_of("precision", self.precision, get_args(Precision)),
        }
        for name in ("clip", "preconditioner"):
            if getattr(self, name) is not None:
                checked[name] = real_number(name, getattr(self, name), above=0)
        if self.solver_samples is not None:
            checked["solver_samples"] = whole_number("solver_samples", self.solver_samples)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.solver_samples is not None and (self.loss != "square" or self.schedule == "halving"):
            raise ValueError(
                'solver_samples needs loss = "square", whose W has a closed form, and another schedule than "halving"'
            )
        if self.orthogonal and self.preconditioner is not None:
            raise ValueError("orthogonal steps need no preconditioner; set one of the two")
        if self.cross_fitting:
            needed = {"weights": "solver", "solver": "lbfgs", "active_set": False}
            if any(getattr(self, name) != value for name, value in needed.items()) or self.schedule == "halving":
                given = ", ".join(f"{name} = {value!r}" for name, value in needed.items())
                raise ValueError(f'cross_fitting needs {given} and another schedule than "halving"')
            if not self.classifies:
                raise ValueError('cross_fitting is for classification, not for loss = "square"')

    @property
    def loss_function(self) -> Loss:
        return LOSSES[self.loss]

    @property
    def classifies(self) -> bool:
        """Whether the targets are 1 and -1."""
        return self.loss != "square"

    def rate(self, progress: float) -> float:
        """The part of the learning rates in use after this part (0 to 1) of the training."""
        risen = min(1.0, progress * self.epochs / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            return risen * (1 + math.cos(math.pi * progress)) / 2
        return risen * (1 - progress) if self.schedule == "linear" else risen

    def to_dict(self) -> dict[str, Any]:
        """All settings, defaults included."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Any) -> Self:
        """The recipe that a table describes; settings left out have their defaults."""
        if not isinstance(settings, dict):
            raise ValueError(f"a recipe is a table of settings, got {settings!r}")
        check_names("the recipe", settings, {field.name for field in fields(cls)})
        return cls(**settings)
