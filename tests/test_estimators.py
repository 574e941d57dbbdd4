"""The scikit-learn estimators: scikit-learn's own checks, every form of input, and the same numbers as the library by hand.

Training with labels and regression have a file of their own, test_supervised_estimators.py.
"""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from sckn import checkpoint
from sckn.estimators import FEATURE_NORM, CKNClassifier, CKNRegressor, CKNTransformer
from sckn.layer import LayerConfig
from sckn.linear import fit_linear, one_vs_all
from sckn.losses import SquaredHinge
from sckn.network import CKN, NetworkConfig
from sckn.training.unsupervised import encode, fit_unsupervised

SMALL = NetworkConfig(1, (LayerConfig(16, 3, subsampling=2), LayerConfig(24, 3, subsampling=2)))
Digits = tuple[np.ndarray, np.ndarray]


def seed_of(random_state: int) -> int:
    """The seed of `fit_unsupervised` that an estimator draws."""
    return int(np.random.RandomState(random_state).randint(2**31 - 1))


def state(network: CKN) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@parametrize_with_checks([CKNTransformer(), CKNClassifier(), CKNRegressor()])
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_images_rows_and_tensors_are_the_same(digits: Digits, dtype: type) -> None:
    images, labels = digits[0][:60].astype(dtype), digits[1][:60]
    rows = images.reshape(60, 64)
    expected = CKNTransformer(SMALL, random_state=0).fit(images)
    features = expected.transform(images)
    assert features.shape == (60, 24 * 2 * 2)
    assert features.dtype == dtype
    assert list(expected.get_feature_names_out()[:2]) == ["ckntransformer0", "ckntransformer1"]
    assert len(expected.get_feature_names_out()) == 96
    assert np.array_equal(expected.transform(rows), features)  # the shape is known since fit
    assert np.array_equal(expected.transform(torch.from_numpy(images)), features)
    shaped = CKNTransformer(SMALL, image_shape=(1, 8, 8), random_state=0)
    for given in (images, rows, torch.from_numpy(images), torch.from_numpy(rows), rows.tolist()):
        if dtype == np.float64 or not isinstance(given, list):
            assert np.array_equal(shaped.fit_transform(given), features)
    classify = CKNClassifier(SMALL, image_shape=(1, 8, 8), random_state=0)
    scores = classify.fit(images, labels).decision_function(images)
    assert np.array_equal(classify.fit(torch.from_numpy(rows), torch.from_numpy(labels)).decision_function(rows), scores)


def test_bytes_are_scaled_as_in_the_library(digits: Digits) -> None:
    pixels = (digits[0][:40] * 255).astype(np.uint8)
    transformer = CKNTransformer(SMALL, random_state=3)
    features = transformer.fit_transform(pixels)
    network = fit_unsupervised(CKN(SMALL), torch.from_numpy(pixels), seed=seed_of(3))
    assert features.dtype == np.float32
    assert np.array_equal(features, encode(network, torch.from_numpy(pixels)).numpy())
    assert np.array_equal(features, transformer.transform(pixels.reshape(40, 64)))


def test_flat_row_without_shape_is_a_line_of_pixels(digits: Digits) -> None:
    rows = digits[0][:30].reshape(30, 64)
    config = NetworkConfig(1, (LayerConfig(8, 3, subsampling=4),))
    transformer = CKNTransformer(config, random_state=0).fit(rows)
    assert transformer.n_features_in_ == 64
    assert np.array_equal(transformer.transform(rows), transformer.transform(rows.reshape(30, 1, 1, 64)))
    assert transformer.transform(rows).shape == (30, 8 * 16)


def test_colour_images() -> None:
    images = np.random.RandomState(0).rand(12, 3, 10, 6)
    transformer = CKNTransformer(random_state=0)
    features = transformer.fit_transform(images)
    assert transformer.n_features_in_ == 180
    assert transformer.network_.config.in_channels == 3
    assert features.shape == (12, len(transformer.get_feature_names_out()))


def test_equals_the_library_by_hand(digits: Digits) -> None:
    images, labels = digits[0][:200], digits[1][:200]
    settings: dict[str, Any] = {"patches": 2000, "iterations": 5, "batch_size": 64}
    classifier = CKNClassifier(SMALL, **settings, random_state=7, regularization=0.01).fit(images, labels)
    network = fit_unsupervised(CKN(SMALL).double(), images, **settings, seed=seed_of(7))
    assert same(state(network), state(classifier.network_))
    features = encode(network, images, batch_size=64)
    transformer = CKNTransformer(SMALL, **settings, random_state=7).fit(images)
    assert np.array_equal(transformer.transform(images), features.numpy())
    scale = FEATURE_NORM / float(features.norm(dim=1).mean())
    weights = fit_linear(scale * features, one_vs_all(torch.from_numpy(labels), 10, features.dtype), 0.01).weights
    scores = scale * features @ weights
    assert np.allclose(classifier.decision_function(images), scores.numpy(), rtol=1e-10, atol=1e-10)
    assert np.array_equal(classifier.predict(images), scores.argmax(1).numpy())
    assert classifier.coef_.shape == (10, 96)
    assert np.allclose(features.numpy() @ classifier.coef_.T, scores.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("strength", [None, 0.03])
def test_agrees_with_linear_svc(digits: Digits, classes: int, strength: float | None) -> None:
    kept = digits[1] < classes
    images, labels, held_out = digits[0][kept][:150], digits[1][kept][:150], digits[0][kept][150:300]
    regularization = 1 / 150 if strength is None else strength
    classifier = CKNClassifier(SMALL, random_state=0, regularization=strength, tolerance=1e-7).fit(images, labels)
    transformer = CKNTransformer(SMALL, random_state=0).fit(images)
    features = transformer.transform(images)
    scale = FEATURE_NORM / np.linalg.norm(features, axis=1).mean()
    svm = LinearSVC(fit_intercept=False, C=1 / (regularization * 150), tol=1e-9, max_iter=100_000, random_state=0)
    svm.fit(scale * features, labels)

    targets = one_vs_all(torch.from_numpy(labels), classes, torch.float64)[:, -1 if classes == 2 else 0 :]

    def objective(weights: np.ndarray) -> float:
        """Of weights (classes, d) on the scaled features: the squared hinge of LinearSVC has no 1/2 either."""
        loss = SquaredHinge()(targets, torch.from_numpy(scale * features @ weights.T)).sum() / 150
        return float(loss) + regularization / 2 * float(np.square(weights).sum())

    assert objective(classifier.coef_ / scale) == pytest.approx(objective(svm.coef_), rel=1e-5)
    assert np.array_equal(classifier.predict(held_out), svm.predict(scale * transformer.transform(held_out)))


@pytest.mark.parametrize("as_path", [False, True])
def test_trained_network_is_used_as_it_is(digits: Digits, tmp_path: Path, as_path: bool) -> None:
    images, labels = digits[0][:80], digits[1][:80]
    trained = fit_unsupervised(CKN(SMALL), images, seed=5).train()
    before, features = state(trained), encode(trained, images).numpy()
    given: CKN | Path = trained
    if as_path:
        given = tmp_path / "network.safetensors"
        checkpoint.save(trained, given)
    transformer = CKNTransformer(given).fit(images[:10])
    assert same(state(transformer.network_), before)
    assert transformer.network_ is not given
    assert np.array_equal(transformer.transform(images), features)  # in the network's precision
    classifier = CKNClassifier(str(given) if as_path else given).fit(images, labels)
    assert same(state(classifier.network_), before)
    assert same(state(trained), before)
    assert trained.training
    with pytest.raises(ValueError, match="takes images of 1 channels, got 3"):
        transformer.fit(np.zeros((4, 3, 8, 8)))


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match="absent"):
        CKNTransformer(tmp_path / "absent.safetensors").fit(np.ones((3, 1, 8, 8)))


def test_pipeline_and_grid_search(digits: Digits) -> None:
    rows, labels = digits[0][:120].reshape(120, 64), digits[1][:120]
    transformer = CKNTransformer(SMALL, image_shape=(1, 8, 8), random_state=0)
    pipeline = make_pipeline(MinMaxScaler((0.0, 1.0)), transformer, LogisticRegression(C=1e3, max_iter=2000))
    assert pipeline.fit(rows, labels).score(rows, labels) > 0.95
    wider = NetworkConfig(1, (LayerConfig(24, 3, subsampling=2),))
    grid = {"network": [SMALL, wider], "regularization": [None, 1e6]}
    search = GridSearchCV(CKNClassifier(image_shape=(1, 8, 8), random_state=0), grid, cv=2)
    search.fit(rows, labels)
    assert search.best_params_["network"] in (SMALL, wider)
    assert search.best_estimator_.score(rows, labels) > 0.95
    assert len(search.cv_results_["params"]) == 4


@pytest.mark.parametrize("network", [None, SMALL, CKN(SMALL)], ids=["default", "config", "trained"])
def test_clone_pickle_and_set_params(digits: Digits, network: NetworkConfig | CKN | None) -> None:
    images, labels = digits[0][:40], digits[1][:40]
    classifier = CKNClassifier(network, random_state=0, regularization=0.5).fit(images, labels)
    copy: Any = clone(classifier)
    assert not hasattr(copy, "network_")
    assert copy.get_params()["regularization"] == 0.5
    assert np.array_equal(copy.fit(images, labels).coef_, classifier.coef_)
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.decision_function(images), classifier.decision_function(images))
    copy.set_params(regularization=5.0, network=SMALL).fit(images, labels)
    assert not np.array_equal(copy.coef_, classifier.coef_)
    assert "CKNClassifier" in repr(classifier)


def test_binary_and_string_labels(digits: Digits) -> None:
    kept = digits[1] < 2
    images, names = digits[0][kept][:60], np.array(["zero", "one"])[digits[1][kept][:60]]
    classifier = CKNClassifier(SMALL, random_state=0).fit(images, names)
    assert list(classifier.classes_) == ["one", "zero"]
    scores = classifier.decision_function(images)
    assert scores.shape == (60,)
    assert classifier.coef_.shape == (1, 96)
    assert np.array_equal(classifier.predict(images) == "zero", scores > 0)
    assert classifier.score(images, names) == 1.0


def test_random_state(digits: Digits) -> None:
    images = digits[0][:50]

    def features(random_state: Any) -> np.ndarray:
        return CKNTransformer(SMALL, random_state=random_state).fit_transform(images)

    torch.manual_seed(1)
    first = features(0)
    torch.manual_seed(2)
    assert np.array_equal(first, features(0))  # whatever the global state
    assert np.array_equal(first, features(np.random.RandomState(0)))
    assert not np.allclose(first, features(1))
    generator = np.random.RandomState(0)
    assert not np.allclose(features(generator), features(generator))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 2), (2, 1, 3, 1), (3, 2, 5, 5), (1, 1, 8, 8), (40, 3, 2, 7)])
@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_default_network_adapts_to_few_patches(shape: tuple[int, ...], density: float) -> None:
    random = np.random.RandomState(0)
    images = random.randn(*shape) * (random.rand(*shape) < density)
    images[0, 0, 0, 0] = 100.0  # far brighter than the others
    transformer = CKNTransformer(random_state=0)
    features = transformer.fit_transform(images)
    assert features.shape == (shape[0], len(transformer.get_feature_names_out()))
    assert np.isfinite(features).all()


def test_explicit_network_keeps_its_error() -> None:
    with pytest.raises(ValueError, match="24 filters need at least 24 patches other than zero, got 4"):
        CKNTransformer(SMALL).fit(np.random.RandomState(0).rand(1, 1, 4, 4))


@pytest.mark.parametrize(
    ("images", "settings", "message"),
    [
        (np.ones((5, 8, 8)), {}, r"expected images of shape \(n, c, h, w\) or flat rows, got .* \(5, 8, 8\)"),
        (np.ones((5, 1, 8, 8)), {"image_shape": (1, 4, 16)}, r"expected images of shape \(n, 1, 4, 16\) or flat rows, got"),
        (np.ones((5, 64)), {"image_shape": (3, 8, 8)}, r"image_shape \(3, 8, 8\) has 192 values, but the rows of X have 64"),
        (np.ones((5, 64)), {"image_shape": (8, 8)}, r"image_shape must be \(channels, height, width\), got \(8, 8\)"),
        (np.ones((5, 3, 8, 8)), {"network": SMALL}, "the network takes images of 1 channels, got 3"),
        (np.full((5, 1, 8, 8), np.nan), {}, "contains NaN"),
        (np.full((5, 64), np.inf), {}, "contains infinity"),
        (np.ones((0, 1, 8, 8)), {}, "0 sample"),
    ],
)
def test_bad_images_are_refused(images: np.ndarray, settings: dict[str, Any], message: str) -> None:
    for estimator in (CKNTransformer(**settings), CKNClassifier(**settings)):
        with pytest.raises(ValueError, match=message):
            estimator.fit(images, np.arange(len(images)) if len(images) else np.arange(5))


def test_other_mistakes_are_refused(digits: Digits) -> None:
    images, labels = digits[0][:40], digits[1][:40]
    with pytest.raises(NotFittedError):
        CKNTransformer().transform(images)
    transformer = CKNTransformer(SMALL, random_state=0).fit(images)
    with pytest.raises(ValueError, match=r"shape \(n, 1, 8, 8\) or flat rows, got an array of shape \(40, 1, 4, 16\)"):
        transformer.transform(images.reshape(40, 1, 4, 16))
    with pytest.raises(ValueError, match="X has 32 features, but CKNTransformer is expecting 64"):
        transformer.transform(images.reshape(80, 32))
    with pytest.raises(TypeError, match="network must be a NetworkConfig, a CKN, the path of one, or None, got 3"):
        CKNTransformer(3).fit(images)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class"):
        CKNClassifier(SMALL).fit(images, np.zeros(40))
    with pytest.raises(ValueError, match="regularization must be a number above 0, got 0"):
        CKNClassifier(SMALL, regularization=0).fit(images, labels)
    with pytest.raises(ValueError, match="tolerance must be a number above 0, got -1"):
        CKNClassifier(SMALL, tolerance=-1).fit(images, labels)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        CKNClassifier(SMALL).fit(images, labels[:-1])


def test_failed_fit_leaves_what_was_there(digits: Digits) -> None:
    images, labels = digits[0][:40], digits[1][:40]
    classifier = CKNClassifier(SMALL, random_state=0, regularization=-1.0)
    with pytest.raises(ValueError, match="regularization"):
        classifier.fit(images, labels)
    with pytest.raises(NotFittedError):
        classifier.predict(images)
    scores = classifier.set_params(regularization=0.1).fit(images, labels).decision_function(images)
    with pytest.raises(ValueError, match="16 filters need at least 16 patches other than zero, got 0"):
        classifier.fit(0 * images, labels)
    assert np.array_equal(classifier.decision_function(images), scores)


def test_unfinished_solution_is_a_warning(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sckn.estimators.fit_linear", partial(fit_linear, max_iterations=2))
    with pytest.warns(ConvergenceWarning, match=r"above the tolerance 1.0e-04; raise the tolerance"):
        CKNClassifier(SMALL, random_state=0).fit(digits[0][:40], digits[1][:40])


def test_digits_beat_raw_pixels(digits: Digits) -> None:
    images, labels = digits
    rows = images.reshape(len(images), 64)
    raw = LinearSVC(random_state=0).fit(rows[:300], labels[:300]).score(rows[-600:], labels[-600:])
    score = CKNClassifier(random_state=0).fit(images[:300], labels[:300]).score(images[-600:], labels[-600:])
    assert score > raw + 0.01
    assert score > 0.96


@pytest.mark.gpu
def test_gpu_agrees_with_cpu_and_pickles_without_one(digits: Digits) -> None:
    images, labels = digits[0][:200], digits[1][:200]
    # solved to the end: where a loose tolerance stops the solver is a matter of rounding
    automatic = CKNClassifier(SMALL, random_state=0, tolerance=1e-9).fit(images, labels)
    on_cpu = CKNClassifier(SMALL, random_state=0, tolerance=1e-9, device="cpu").fit(images, labels)
    assert np.allclose(automatic.decision_function(images), on_cpu.decision_function(images), atol=1e-5)
    assert all(parameter.device.type == "cpu" for parameter in automatic.network_.parameters())
