"""scikit-learn estimators: a network trained without labels as a transformer, and with a linear SVM on top as a classifier."""

import math
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from sckn import checkpoint
from sckn.layer import LayerConfig
from sckn.linear import fit_linear, one_vs_all
from sckn.network import CKN, NetworkConfig
from sckn.training.unsupervised import encode, fit_unsupervised

__all__ = ["CKNClassifier", "CKNTransformer"]

# Mean norm to which the classifier scales its features: it gives lambda its meaning.
FEATURE_NORM = 10.0


class _CKNEstimator(BaseEstimator):
    """What both estimators share: their input, the network and its features."""

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

    def _fit_network(self, images: np.ndarray) -> None:
        """Set `network_`, which stays on the CPU, so that a pickle can be read on any machine."""
        network = self.network
        if network is None:
            network = _default_network(images)
        elif isinstance(network, str | Path):
            network = checkpoint.load(network)
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
            self.network_ = deepcopy(network).cpu()
            return
        self.network_ = fit_unsupervised(
            CKN(network).to(_device(self.device), getattr(torch, images.dtype.name)),
            images,
            patches=self.patches,
            iterations=self.iterations,
            batch_size=self.batch_size,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            progress=False,
        ).cpu()

    def _features(self, images: np.ndarray) -> Tensor:
        """Features (n, p h w) on the device."""
        device = _device(self.device)
        network = self.network_ if device.type == "cpu" else deepcopy(self.network_).to(device)
        return encode(network, images, batch_size=self.batch_size)


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
        self._fit_network(self._images(X, reset=True))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features (n, filters h' w') of the images: the last map, flattened, in the precision of the network."""
        check_is_fitted(self)
        return self._features(self._images(X, reset=False)).cpu().numpy()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class CKNClassifier(ClassifierMixin, _CKNEstimator):
    """A convolutional kernel network learned without labels, or given, and a linear SVM on its features.

    One-vs-all squared hinge loss without intercept, equation (7), on the features of `CKNTransformer` times the number
    that makes their mean norm 10.

    Parameters
    ----------
    network, image_shape, patches, iterations, batch_size, device, random_state: as in `CKNTransformer`.
    regularization: lambda; None is 1/n for n training images.
    tolerance: of the linear solver, relative to the gradient at zero.

    Attributes
    ----------
    classes_: labels in order. network_: the trained CKN. n_features_in_: c h w.
    coef_: (classes, features), one row if there are two classes; it acts on the features of `CKNTransformer`.
    feature_names_in_: names of the columns of X, where they are all strings.

    Example
    -------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import train_test_split
    >>> X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), train_size=300, random_state=0)
    >>> CKNClassifier(image_shape=(1, 8, 8), random_state=0).fit(X, y).score(X_test, y_test) > 0.96
    True

    References
    ----------
    Mairal, End-to-End Kernel Learning with Supervised Convolutional Kernel Networks, NIPS 2016.
    """

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
        regularization: float | None = None,
        tolerance: float = 1e-4,
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
        self.regularization = regularization
        self.tolerance = tolerance

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from images X (n, c, h, w) or flat rows (n, c h w) and labels y (n,) of any type."""
        y = validate_data(self, y=_array(y))  # pyright: ignore[reportArgumentType]
        images = self._images(X, reset=True)
        check_consistent_length(images, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs labels of at least 2 classes, got 1 class: {self.classes_[0]!r}")
        self._fit_network(images)
        features = self._features(images)
        scale = FEATURE_NORM / (float(torch.linalg.vector_norm(features, dim=1).mean()) or 1.0)
        targets = one_vs_all(torch.from_numpy(labels).to(features.device), len(self.classes_), features.dtype)
        model = fit_linear(
            features.mul_(scale),
            targets[:, 1:] if len(self.classes_) == 2 else targets,  # of two classes the first is minus the second
            1 / len(images) if self.regularization is None else self.regularization,
            tolerance=self.tolerance,
        )
        if not model.gradient <= 2 * self.tolerance:  # the solver's own count of it drifts by rounding
            warnings.warn(
                f"the linear solver stopped at a relative gradient of {model.gradient:.1e}, above the tolerance "
                f"{self.tolerance:.1e}; raise the tolerance or the regularization, or give the images as float64",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.coef_ = (scale * model.weights).T.cpu().numpy()
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores (n, classes); for two classes (n,), positive for `classes_[1]`."""
        check_is_fitted(self)
        scores = self._features(self._images(X, reset=False)).cpu().numpy() @ self.coef_.T
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class of each image, (n,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]


def _array(data: Any) -> Any:
    return data.detach().cpu().numpy() if isinstance(data, Tensor) else data


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
