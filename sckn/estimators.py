"""scikit-learn estimators: a network as a transformer, and with a linear model on top as a classifier or a regressor."""

import math
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, RegressorMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from sckn import checkpoint
from sckn.layer import LayerConfig
from sckn.linear import fit_linear, one_vs_all
from sckn.network import CKN, NetworkConfig
from sckn.settings import real_number, true_or_false
from sckn.training.diagnosis import what_went_wrong
from sckn.training.recipe import Recipe
from sckn.training.state import EpochRecord
from sckn.training.supervised import train_supervised
from sckn.training.unsupervised import encode, fit_unsupervised

__all__ = ["CKNClassifier", "CKNRegressor", "CKNTransformer"]

# Mean norm to which the features are scaled for the linear model: it gives lambda its meaning.
FEATURE_NORM = 10.0
# For training with labels where no recipe is given: the paper's, whose learning rate finds itself, with the small batches
# and the few epochs that suit small data sets.
SMALL_DATA = Recipe(epochs=20, batch_size=32, learning_rate=0.03, feature_norm=FEATURE_NORM, precision="highest")


class _CKNEstimator(BaseEstimator):
    """What all estimators share: their input, the network and its features."""

    network_: CKN
    n_features_in_: int

    def __init__(
        self,
        network: NetworkConfig | CKN | str | Path | None = None,
        *,
        image_shape: tuple[int, int, int] | None = None,
        patches: int = 100_000,
        iterations: int = 20,
        batch_size: int = 256,
        device: str | torch.device = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.network = network
        self.image_shape = image_shape
        self.patches = patches
        self.iterations = iterations
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def _images(self, X: Any, *, reset: bool) -> np.ndarray:
        """Images (n, c, h, w) from any input allowed; `reset` where fit learns their shape."""
        X = _array(X)
        shape = self.image_shape if reset else self._image_shape
        if shape is not None and (len(shape) != 3 or min(shape) < 1):
            raise ValueError(f"image_shape must be (channels, height, width), got {shape}")
        if getattr(X, "ndim", 2) > 2:
            if X.ndim != 4 or (shape is not None and X.shape[1:] != tuple(shape)):
                wanted = "(n, c, h, w)" if shape is None else f"(n, {', '.join(map(str, shape))})"
                raise ValueError(f"expected images of shape {wanted} or flat rows, got an array of shape {X.shape}")
            shape = X.shape[1:]
            X = X.reshape(len(X), math.prod(shape))
        if isinstance(X, np.ndarray) and X.dtype == np.uint8:
            X = np.divide(X, 255, dtype=np.float32)  # bytes mean [0, 1] everywhere in sckn
        rows = np.asarray(validate_data(self, X, reset=reset, dtype=[np.float64, np.float32]))  # pyright: ignore[reportArgumentType]
        shape = (1, 1, rows.shape[1]) if shape is None else tuple(shape)
        if math.prod(shape) != rows.shape[1]:
            raise ValueError(f"image_shape {shape} has {math.prod(shape)} values, but the rows of X have {rows.shape[1]}")
        self._image_shape = shape
        return rows.reshape(-1, *shape)

    def _learned_network(self, images: np.ndarray) -> CKN:
        """The network that was given, in a copy, or one with filters learned without labels; on the device."""
        network = self.network
        if network is None:
            network = _default_network(images)
        elif isinstance(network, str | Path):
            network = checkpoint.load_network(network)
        if not isinstance(network, NetworkConfig | CKN):
            raise TypeError(f"network must be a NetworkConfig, a CKN, the path of one, or None, got {network!r}")
        config = network if isinstance(network, NetworkConfig) else network.config
        channels, *size = images.shape[1:]
        if channels != config.in_channels:
            raise ValueError(
                f"the network takes images of {config.in_channels} channels, got {channels}; for flat rows, "
                f"image_shape must be ({config.in_channels}, h, w)"
            )
        self._n_features_out = config.layers[-1].filters * math.prod(config.output_size(*size))
        if isinstance(network, CKN):
            return deepcopy(network).to(_device(self.device))
        return fit_unsupervised(
            CKN(network).to(_device(self.device), getattr(torch, images.dtype.name)),
            images,
            patches=self.patches,
            iterations=self.iterations,
            batch_size=self.batch_size,
            seed=self._seed(),
            progress=False,
        )

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _features(self, X: Any) -> np.ndarray:
        """Features (n, p h w) of any input allowed."""
        check_is_fitted(self)
        device = _device(self.device)
        # network_ stays on the CPU, so that a pickle can be read on any machine
        network = self.network_ if device.type == "cpu" else deepcopy(self.network_).to(device)
        return encode(network, self._images(X, reset=False), batch_size=self.batch_size).cpu().numpy()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")  # what `fit` sets last: one that failed counts for nothing


class CKNTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _CKNEstimator):
    """Features of images from a convolutional kernel network, learned without labels or given.

    Images are arrays or tensors (n, c, h, w), or flat rows (n, c h w). Bytes (uint8) are scaled to [0, 1]. The work is
    done in single precision if the images given to `fit` are float32 or bytes, otherwise in double precision.

    Parameters
    ----------
    network: what to use:
        NetworkConfig: `fit` learns its filters from the images, without labels;
        CKN, or the path of one for `sckn.load`: used as it is, in its own precision;
        None: `fit` learns two layers of 64 and 256 filters (fewer if there are too few patches), the last map 4 x 4 at most.
    image_shape: (c, h, w) of flat rows; by default a flat row is one line of pixels, (1, 1, d).
    patches: drawn at random for each layer. iterations: of k-means, at most.
    batch_size: images encoded at a time.
    device: "auto" (CUDA if there is one, otherwise the CPU) or any name PyTorch knows.
    random_state: an integer makes `fit` reproducible.

    Attributes
    ----------
    network_: the trained CKN. n_features_in_: c h w.
    feature_names_in_: names of the columns of X, where they are all strings.

    Example
    -------
    >>> from sklearn.datasets import load_digits
    >>> images = load_digits().images[:100, None]  # (100, 1, 8, 8)
    >>> CKNTransformer(random_state=0).fit_transform(images).shape  # 256 filters, 4 x 4 pixels
    (100, 4096)

    References
    ----------
    Mairal, End-to-End Kernel Learning with Supervised Convolutional Kernel Networks, NIPS 2016.
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the network from images X (n, c, h, w) or flat rows (n, c h w); y is ignored."""
        self.network_ = self._learned_network(self._images(X, reset=True)).cpu()
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features (n, filters h' w') of the images: the last map, flattened, in the precision of the network."""
        return self._features(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class _CKNPredictor(_CKNEstimator):
    """What classifier and regressor share: filters and linear model minimise one objective, together or in turn."""

    coef_: np.ndarray
    history_: list[EpochRecord]
    _losses: tuple[str, ...]  # those a recipe may have, the one used without a recipe first

    def __init__(
        self,
        network: NetworkConfig | CKN | str | Path | None = None,
        *,
        image_shape: tuple[int, int, int] | None = None,
        supervised: bool = False,
        recipe: Recipe | None = None,
        regularization: float | None = None,
        patches: int = 100_000,
        iterations: int = 20,
        batch_size: int = 256,
        device: str | torch.device = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            network,
            image_shape=image_shape,
            patches=patches,
            iterations=iterations,
            batch_size=batch_size,
            device=device,
            random_state=random_state,
        )
        self.supervised = supervised
        self.recipe = recipe
        self.regularization = regularization

    def _learn(self, images: np.ndarray, targets: Tensor) -> np.ndarray:
        """Set `network_` and `history_`; W' (outputs, features), for features as they are and targets (n, outputs)."""
        supervised, recipe = true_or_false("supervised", self.supervised), self._checked_recipe()
        strength = 1 / len(images)
        if self.regularization is not None:
            strength = real_number("regularization", self.regularization, above=0)
        network = self._learned_network(images)
        history: list[EpochRecord] = []
        if supervised and bool(targets.any()):  # where no target differs from the mean there is nothing to learn
            W, history = self._train(network, images, targets, strength, recipe)
        else:
            W = self._fit_linear(network, images, targets, strength, recipe)
        self.network_, self.history_ = network.cpu(), history
        return W.detach().T.cpu().numpy()

    def _checked_recipe(self) -> Recipe:
        """The one given for the training with labels, else the default, of which a linear model alone uses a part."""
        if self.recipe is None or not self.supervised:
            return self._default_recipe()
        if not isinstance(self.recipe, Recipe):
            raise TypeError(f"recipe must be a Recipe or None, got {self.recipe!r}")
        if self.recipe.loss not in self._losses:
            wanted = " or ".join(map(repr, self._losses))
            raise ValueError(f"{type(self).__name__} needs a recipe whose loss is {wanted}, got {self.recipe.loss!r}")
        return self.recipe

    def _default_recipe(self) -> Recipe:
        return replace(SMALL_DATA, loss=self._losses[0])

    def _fit_linear(self, network: CKN, images: np.ndarray, targets: Tensor, strength: float, recipe: Recipe) -> Tensor:
        """W (features, outputs) at these filters."""
        features = encode(network, images, batch_size=self.batch_size)
        scale = recipe.feature_norm / (float(torch.linalg.vector_norm(features, dim=1).mean()) or 1.0)
        features = features.mul_(scale)
        if recipe.loss == "square":  # the closed form is less precise than its matrices
            features = features.double()
        model = fit_linear(
            features, targets.to(features), strength, loss=recipe.loss_function, tolerance=recipe.solver_tolerance
        )
        _check_solution(model.gradient, recipe)
        return scale * model.weights

    def _train(
        self, network: CKN, images: np.ndarray, targets: Tensor, strength: float, recipe: Recipe
    ) -> tuple[Tensor, list[EpochRecord]]:
        """Train the filters in place; W (features, outputs), and what each epoch gave."""
        with warnings.catch_warnings():
            # the history says it, too, and a step back is nothing to worry about
            warnings.filterwarnings("ignore", "the objective was .* the epoch is undone", RuntimeWarning)
            result = train_supervised(
                network,
                np.require(images, requirements=["C", "W"]),  # as torch wants them
                targets,
                regularization=strength,
                recipe=recipe,
                seed=self._seed(),
                progress=False,
            )
        if warning := what_went_wrong(result.history, recipe):
            warnings.warn(warning, ConvergenceWarning, stacklevel=4)
        _check_solution(next(record["solver_gradient"] for record in reversed(result.history) if record["accepted"]), recipe)
        return result.model.weights, result.history


class CKNClassifier(ClassifierMixin, _CKNPredictor):
    """A convolutional kernel network and a linear SVM on its features.

    The filters are learned without labels, or given; with `supervised` they are then trained together with the SVM, which
    makes small networks much better, and gains little where there are more features than images. One-vs-all squared hinge
    loss without intercept, equation (7), on the features of `CKNTransformer` times the number that makes their mean norm 10
    before this training.

    Parameters
    ----------
    network, image_shape, patches, iterations, batch_size, device, random_state: as in `CKNTransformer`.
    supervised: train the filters with the labels, too; a network that was given is trained in a copy.
    recipe: the settings of this training; by default 20 epochs of the paper's method, in small batches, made for some
        hundreds or thousands of images.
    regularization: lambda; None is 1/n for n training images.
    tolerance: of the linear solver, relative to the gradient at zero; a recipe has its own.

    Attributes
    ----------
    classes_: labels in order. network_: the trained CKN. n_features_in_: c h w.
    coef_: (classes, features), one row if there are two classes; it acts on the features of `CKNTransformer`.
    history_: what each epoch of the supervised training gave, the state before the first one included.
    feature_names_in_: names of the columns of X, where they are all strings.

    Example
    -------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import train_test_split
    >>> X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), train_size=300, random_state=0)
    >>> CKNClassifier(image_shape=(1, 8, 8), random_state=0).fit(X, y).score(X_test, y_test) > 0.96
    True

    A network of 96 features instead of 4096 makes less than half its errors when the labels train its filters, too:

    >>> small = NetworkConfig(1, (LayerConfig(16, 3, subsampling=2), LayerConfig(24, 3, subsampling=2)))
    >>> classifier = CKNClassifier(small, image_shape=(1, 8, 8), random_state=0)
    >>> error = 1 - classifier.fit(X, y).score(X_test, y_test)
    >>> 1 - classifier.set_params(supervised=True).fit(X, y).score(X_test, y_test) < error / 2
    True

    References
    ----------
    Mairal, End-to-End Kernel Learning with Supervised Convolutional Kernel Networks, NIPS 2016.
    """

    _losses = ("squared_hinge", "logistic", "square")

    def __init__(
        self,
        network: NetworkConfig | CKN | str | Path | None = None,
        *,
        image_shape: tuple[int, int, int] | None = None,
        supervised: bool = False,
        recipe: Recipe | None = None,
        regularization: float | None = None,
        tolerance: float = 1e-4,
        patches: int = 100_000,
        iterations: int = 20,
        batch_size: int = 256,
        device: str | torch.device = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            network,
            image_shape=image_shape,
            supervised=supervised,
            recipe=recipe,
            regularization=regularization,
            patches=patches,
            iterations=iterations,
            batch_size=batch_size,
            device=device,
            random_state=random_state,
        )
        self.tolerance = tolerance

    def _default_recipe(self) -> Recipe:
        return replace(super()._default_recipe(), solver_tolerance=real_number("tolerance", self.tolerance, above=0))

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from images X (n, c, h, w) or flat rows (n, c h w) and labels y (n,) of any type."""
        y = validate_data(self, y=_array(y))  # pyright: ignore[reportArgumentType]
        images = self._images(X, reset=True)
        check_consistent_length(images, y)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{type(self).__name__} needs labels of at least 2 classes, got 1 class: {classes[0]!r}")
        targets = one_vs_all(torch.from_numpy(labels), len(classes))
        # of two classes the first is minus the second
        self.coef_ = self._learn(images, targets[:, 1:] if len(classes) == 2 else targets)
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores (n, classes); for two classes (n,), positive for `classes_[1]`."""
        scores = self._features(X) @ self.coef_.T
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class of each image, (n,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]


class CKNRegressor(RegressorMixin, _CKNPredictor):
    """A convolutional kernel network and ridge regression of one or several numbers on its features.

    The filters are learned without targets, or given; with `supervised` they are then trained together with the linear
    model. Equation (7) with half the squared error, summed over targets of mean 0 and variance 1, on the features of
    `CKNTransformer` times the number that makes their mean norm 10 before this training.

    Parameters
    ----------
    network, image_shape, patches, iterations, batch_size, device, random_state: as in `CKNTransformer`.
    supervised, regularization: as in `CKNClassifier`. recipe: likewise, with loss="square".

    Attributes
    ----------
    coef_: (features,), or (targets, features) for y (n, targets); it acts on the features of `CKNTransformer`.
    intercept_: the mean of y, a number or (targets,).
    network_, history_, n_features_in_, feature_names_in_: as in `CKNClassifier`.

    Example
    -------
    >>> y = np.random.RandomState(0).uniform(2, 5, (200, 2))  # centres of spots on images of 8 x 8 pixels
    >>> rows, columns = (np.exp(-((np.arange(8) - centre[:, None]) ** 2)) for centre in y.T)
    >>> X = (rows[:, :, None] * columns[:, None, :])[:, None]  # (200, 1, 8, 8)
    >>> CKNRegressor(random_state=0).fit(X[:100], y[:100]).score(X[100:], y[100:]) > 0.99
    True

    References
    ----------
    Mairal, End-to-End Kernel Learning with Supervised Convolutional Kernel Networks, NIPS 2016.
    """

    _losses = ("square",)

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from images X (n, c, h, w) or flat rows (n, c h w) and numbers y (n,) or (n, targets)."""
        y = validate_data(self, y=_array(y), multi_output=True, y_numeric=True)  # pyright: ignore[reportArgumentType]
        y = np.asarray(y.toarray() if hasattr(y, "toarray") else y, dtype=np.float64)
        images = self._images(X, reset=True)
        check_consistent_length(images, y)
        spread = _or_one(np.ptp(y, axis=0))
        unit = (y - y[0]) / spread  # exactly zero where y is constant; no square over- or underflows
        mean, deviation = unit.mean(axis=0), _or_one(unit.std(axis=0))
        W = self._learn(images, torch.from_numpy((unit - mean) / deviation).view(len(y), -1))
        coef, intercept = W * np.reshape(spread * deviation, (-1, 1)), y[0] + spread * mean
        self.coef_, self.intercept_ = (coef, intercept) if y.ndim == 2 else (coef[0], float(intercept))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The numbers for each image, (n,) or (n, targets) as y was."""
        return self._features(X) @ self.coef_.T + self.intercept_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _check_solution(gradient: float, recipe: Recipe) -> None:
    """Warn where the solver of the linear model stopped early; the square loss has a closed form, and SGD no end."""
    iterates = recipe.weights == "solver" and recipe.loss != "square"
    if iterates and not gradient <= 2 * recipe.solver_tolerance:  # the solver's own count of it drifts by rounding
        warnings.warn(
            f"the linear solver stopped at a relative gradient of {gradient:.1e}, above the tolerance "
            f"{recipe.solver_tolerance:.1e}; raise the tolerance or the regularization, or give the images as float64",
            ConvergenceWarning,
            stacklevel=5,
        )


def _array(data: Any) -> Any:
    return data.detach().cpu().numpy() if isinstance(data, Tensor) else data


def _or_one(scales: np.ndarray) -> np.ndarray:
    return np.where(scales > 0, scales, 1.0)


def _device(device: str | torch.device) -> torch.device:
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def _default_network(images: np.ndarray) -> NetworkConfig:
    """Two layers for images (n, c, h, w), with no more filters than there are patches to learn them from."""
    energy = np.einsum("nchw,nchw->nhw", images, images)
    # dark pixels give no patch; each of the others gives one to the first layer, and four share one in the second
    pixels = max(1, int(np.count_nonzero(energy > 1e-4 * energy.mean())))
    return NetworkConfig(
        images.shape[1],
        (
            LayerConfig(min(64, pixels), 3, subsampling=2.0),
            LayerConfig(min(256, math.ceil(pixels / 4)), 3, subsampling=max(1.0, max(images.shape[2:]) / 8)),
        ),
    )
