"""The scikit-learn estimators trained with labels, end to end, and regression: scikit-learn's own checks, the same numbers as
the library by hand and as scikit-learn's ridge regression, and what happens with settings and targets that make no sense."""

import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_regressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from sckn import checkpoint, kernels
from sckn.estimators import FEATURE_NORM, SMALL_DATA, CKNClassifier, CKNRegressor, CKNTransformer
from sckn.layer import LayerConfig
from sckn.linear import one_vs_all
from sckn.network import CKN, NetworkConfig
from sckn.training.recipe import Recipe
from sckn.training.supervised import TrainingDivergedError, train_supervised
from sckn.training.unsupervised import encode, fit_unsupervised

SMALL = NetworkConfig(1, (LayerConfig(16, 3, subsampling=2), LayerConfig(24, 3, subsampling=2)))
TINY = NetworkConfig(1, (LayerConfig(8, 3, subsampling=2),))
SHORT = replace(SMALL_DATA, epochs=2, learning_rate=0.005)  # low enough to gain something in so few epochs
SHORT_SQUARE = replace(SHORT, loss="square")
Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def spots() -> Data:
    """Images (400, 1, 8, 8), each with a spot in noise, and the two coordinates of the spots, (400, 2)."""
    random = np.random.RandomState(0)
    centres = random.uniform(2, 5, (400, 2))
    rows, columns = (np.exp(-((np.arange(8) - centre[:, None]) ** 2)) for centre in centres.T)
    images = (rows[:, :, None] * columns[:, None, :])[:, None]
    return images + 0.1 * random.randn(*images.shape), centres


@pytest.fixture(scope="module")
def waves() -> Data:
    """Images (400, 1, 8, 8) of waves of any phase in noise, and cosine and sine of twice their direction, (400, 2)."""
    random = np.random.RandomState(0)
    angle, phase = random.uniform(0, np.pi, (400, 1, 1)), random.uniform(0, 2 * np.pi, (400, 1, 1))
    row, column = np.arange(8)[:, None], np.arange(8)
    images = np.sin(1.2 * (np.cos(angle) * row + np.sin(angle) * column) + phase) + 0.5 * random.randn(400, 8, 8)
    return images[:, None], np.stack([np.cos(2 * angle), np.sin(2 * angle)], axis=1)[:, :, 0, 0]


def seed_of(random_state: int) -> int:
    """The seed that an estimator draws."""
    return int(np.random.RandomState(random_state).randint(2**31 - 1))


def state(network: CKN) -> list[torch.Tensor]:
    return [value.clone() for value in network.state_dict().values()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def errors(estimator: Any, train: Data, test: Data) -> tuple[float, float]:
    """Test error, or 1 - R^2, without and with labels for the filters."""
    without = 1 - estimator.set_params(supervised=False).fit(*train).score(*test)
    return without, 1 - estimator.set_params(supervised=True).fit(*train).score(*test)


# -- scikit-learn's checks ---------------------------------------------------------------------------------------------


@parametrize_with_checks([CKNClassifier(supervised=True, recipe=SHORT), CKNRegressor(supervised=True, recipe=SHORT_SQUARE)])
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([CKNClassifier(supervised=True), CKNRegressor(supervised=True)])
def test_scikit_learn_checks_of_the_default_recipe(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_tags() -> None:
    assert is_regressor(CKNRegressor())
    tags = get_tags(CKNRegressor())
    assert tags.target_tags.multi_output
    assert tags.target_tags.single_output
    assert tags.target_tags.required
    assert not get_tags(CKNClassifier()).target_tags.multi_output


# -- training with labels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 10])
def test_equals_the_library_by_hand(digits: Data, dtype: type, classes: int) -> None:
    kept = digits[1] < classes
    images, labels = digits[0][kept][:120].astype(dtype), digits[1][kept][:120]
    settings: dict[str, Any] = {"patches": 2000, "iterations": 5, "batch_size": 64}
    classifier = CKNClassifier(SMALL, **settings, supervised=True, recipe=SHORT, regularization=0.01, random_state=7)
    classifier.fit(images, labels)
    network = CKN(SMALL).to(torch.from_numpy(images).dtype)
    fit_unsupervised(network, images, **settings, seed=seed_of(7))
    targets = one_vs_all(torch.from_numpy(labels), classes)[:, -1 if classes == 2 else 0 :]
    result = train_supervised(network, images, targets, regularization=0.01, recipe=SHORT, seed=seed_of(7))
    assert same(state(classifier.network_), state(network))
    assert np.array_equal(classifier.coef_, result.model.weights.detach().numpy().T)
    assert classifier.coef_.dtype == dtype
    assert len(classifier.history_) == 3
    scores = result.model.predict(torch.from_numpy(images)).numpy()
    found = classifier.decision_function(images)
    assert found.shape == ((120,) if classes == 2 else (120, 10))
    assert np.allclose(found.reshape(120, -1), scores, rtol=1e-4, atol=1e-4)
    assert np.array_equal(classifier.predict(images), found > 0 if classes == 2 else found.argmax(1))
    features = CKNTransformer(classifier.network_).fit_transform(images)
    assert np.allclose(features @ classifier.coef_.T, scores, rtol=1e-4, atol=1e-4)


def test_default_recipe_is_that_of_small_data(digits: Data) -> None:
    kept = digits[1] < 4
    images, labels = digits[0][kept][:40], digits[1][kept][:40]
    classifier = CKNClassifier(TINY, supervised=True, tolerance=1e-3, random_state=0).fit(images, labels)
    by_hand = CKNClassifier(TINY, supervised=True, recipe=replace(SMALL_DATA, solver_tolerance=1e-3), random_state=0)
    assert np.array_equal(classifier.coef_, by_hand.fit(images, labels).coef_)
    assert len(classifier.history_) == SMALL_DATA.epochs + 1
    objectives = [record["objective"] for record in classifier.history_ if record["accepted"]]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] < 0.9 * objectives[0]


def test_training_starts_at_the_model_without_labels(digits: Data) -> None:
    images, labels = digits[0][:80], digits[1][:80]
    # so strict that W is the minimum, and not where the solver happened to stop
    without = CKNClassifier(SMALL, random_state=0, tolerance=1e-9).fit(images, labels)
    recipe = replace(SHORT, epochs=0, solver_tolerance=1e-9)
    start = CKNClassifier(SMALL, supervised=True, recipe=recipe, random_state=0).fit(images, labels)
    assert same(state(start.network_), state(without.network_))
    assert np.allclose(start.coef_, without.coef_, rtol=1e-4, atol=1e-5)
    assert without.history_ == []
    trained = CKNClassifier(SMALL, supervised=True, recipe=SHORT, random_state=0).fit(images, labels)
    assert trained.history_[0]["objective"] == pytest.approx(start.history_[0]["objective"], rel=1e-3)
    assert trained.history_[-1]["objective"] < trained.history_[0]["objective"]
    assert trained.set_params(supervised=False).fit(images, labels).history_ == []


@pytest.mark.parametrize("as_path", [False, True])
def test_the_network_given_is_trained_in_a_copy(digits: Data, tmp_path: Path, as_path: bool) -> None:
    images, labels = digits[0][:80], digits[1][:80]
    network = fit_unsupervised(CKN(SMALL), images, seed=5).train()
    before = state(network)
    path = checkpoint.save(network, tmp_path / "network.safetensors")
    given = path if as_path else network
    classifier = CKNClassifier(given, supervised=True, recipe=SHORT, random_state=0).fit(images, labels)
    assert same(state(network), before)
    assert network.training
    assert not same(state(classifier.network_), before)
    assert classifier.coef_.dtype == np.float32  # in the precision of the network
    start = CKNClassifier(given).fit(images, labels)
    assert not np.allclose(start.decision_function(images), classifier.decision_function(images))
    assert same(state(checkpoint.load_network(path)), before)


def test_layers_that_are_frozen_stay_as_they_are(digits: Data) -> None:
    images, labels = digits[0][:80], digits[1][:80]
    network = fit_unsupervised(CKN(SMALL), images, seed=5)
    network.kernel_layers[0].requires_grad_(False)
    trained = CKNClassifier(network, supervised=True, recipe=SHORT).fit(images, labels).network_
    changed = [not torch.equal(a, b) for a, b in zip(state(trained), state(network), strict=True)]
    assert changed == [False, True]
    with pytest.raises(ValueError, match="all parameters of the network are frozen"):
        CKNClassifier(network.requires_grad_(False), supervised=True).fit(images, labels)


@pytest.mark.parametrize("inverse_root", ["eigh", "newton_schulz", "moving_frame"])
def test_every_network_can_be_trained(digits: Data, inverse_root: Any) -> None:
    images, labels = digits[0][:80].astype(np.float32), digits[1][:80]
    layer = LayerConfig(8, 3, subsampling=2, kernel=kernels.Exponential(learnable=True), inverse_root=inverse_root)
    classifier = CKNClassifier(NetworkConfig(1, (layer,)), supervised=True, recipe=SHORT, random_state=0).fit(images, labels)
    features = torch.from_numpy(CKNTransformer(classifier.network_).fit_transform(images))
    scores = features @ torch.from_numpy(classifier.coef_).T
    loss = (1 - one_vs_all(torch.from_numpy(labels), 10) * scores).clamp_min(0).square().sum() / 80
    assert classifier.history_[-1]["accepted"]
    assert float(loss) == pytest.approx(classifier.history_[-1]["loss"], rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "logistic"},
        {"loss": "square"},
        {"schedule": "cosine", "weights": "sgd"},
        {"averaging": 0.9},
        {"shift": 1, "preconditioner": 1.0},
        {"solver": "miso"},
    ],
)
def test_recipes_of_all_kinds(digits: Data, changes: dict[str, Any]) -> None:
    images, labels = digits[0][:150].astype(np.float32), digits[1][:150]
    classifier = CKNClassifier(SMALL, supervised=True, recipe=replace(SHORT, **changes), random_state=0).fit(images, labels)
    assert classifier.score(images, labels) > 0.9


def test_images_of_all_kinds_are_the_same(digits: Data) -> None:
    images, labels = digits[0][:60], digits[1][:60]
    settings: dict[str, Any] = {"image_shape": (1, 8, 8), "supervised": True, "recipe": SHORT, "random_state": 0}
    expected = CKNClassifier(TINY, **settings).fit(images, labels).coef_
    frozen = images.copy()
    frozen.setflags(write=False)
    reversed_twice = images[::-1].copy()[::-1]
    rows = images.reshape(60, 64)
    for given in (rows, rows.tolist(), frozen, reversed_twice, np.asfortranarray(images), torch.from_numpy(images)):
        assert np.array_equal(CKNClassifier(TINY, **settings).fit(given, labels).coef_, expected)
    pixels = (images * 255).astype(np.uint8)
    of_bytes = CKNClassifier(TINY, **settings).fit(pixels, labels)
    assert of_bytes.coef_.dtype == np.float32
    assert np.array_equal(of_bytes.coef_, CKNClassifier(TINY, **settings).fit(pixels / np.float32(255), labels).coef_)


@pytest.mark.parametrize("kind", [CKNClassifier, CKNRegressor])
def test_random_state(digits: Data, kind: Any) -> None:
    images, labels = digits[0][:50], digits[1][:50]
    recipe = SHORT if kind is CKNClassifier else SHORT_SQUARE

    def coefficients(random_state: Any) -> np.ndarray:
        return kind(TINY, supervised=True, recipe=recipe, random_state=random_state).fit(images, labels).coef_

    torch.manual_seed(1)
    first = coefficients(0)
    torch.manual_seed(2)
    assert np.array_equal(first, coefficients(0))  # whatever the global state
    assert np.array_equal(first, coefficients(0))
    assert not np.allclose(first, coefficients(1))
    generator = np.random.RandomState(0)
    assert not np.allclose(coefficients(generator), coefficients(generator))
    network = fit_unsupervised(CKN(TINY).double(), images, seed=0)
    first, again, other = (kind(network, supervised=True, recipe=recipe, random_state=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.fit(images, labels).coef_, again.fit(images, labels).coef_)
    assert not np.array_equal(first.coef_, other.fit(images, labels).coef_)  # the order of the samples


@pytest.mark.parametrize("kind", [CKNClassifier, CKNRegressor])
@pytest.mark.parametrize("supervised", [False, True])
def test_clone_pickle_and_set_params(digits: Data, kind: Any, supervised: bool) -> None:
    images, labels = digits[0][:40], digits[1][:40]
    recipe = SHORT if kind is CKNClassifier else SHORT_SQUARE
    estimator = kind(TINY, supervised=supervised, recipe=recipe, regularization=0.5, random_state=0).fit(images, labels)
    assert estimator.get_params()["recipe"] is recipe
    copy: Any = clone(estimator)
    assert not hasattr(copy, "network_")
    assert copy.get_params()["recipe"] == recipe
    assert copy.get_params()["supervised"] is supervised
    assert np.array_equal(copy.fit(images, labels).coef_, estimator.coef_)
    again = pickle.loads(pickle.dumps(estimator))
    assert np.array_equal(again.predict(images), estimator.predict(images))
    assert again.history_ == estimator.history_
    assert not np.array_equal(copy.set_params(supervised=not supervised).fit(images, labels).coef_, estimator.coef_)
    assert kind.__name__ in repr(estimator)


def test_pipeline_and_grid_search(digits: Data) -> None:
    rows, labels = digits[0][:120].reshape(120, 64), digits[1][:120]
    classifier = CKNClassifier(SMALL, image_shape=(1, 8, 8), supervised=True, recipe=SHORT, random_state=0)
    pipeline = make_pipeline(MinMaxScaler(), classifier)
    assert pipeline.fit(rows, labels).score(rows, labels) > 0.95
    grid = {"cknclassifier__regularization": [None, 1e6], "cknclassifier__supervised": [False, True]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score=np.nan).fit(rows, labels)
    assert search.best_params_["cknclassifier__regularization"] is None
    assert search.best_score_ > 0.8
    assert len(search.cv_results_["params"]) == 4


def test_binary_and_string_labels(digits: Data) -> None:
    kept = digits[1] < 2
    images, names = digits[0][kept][:60], np.array(["zero", "one"])[digits[1][kept][:60]]
    classifier = CKNClassifier(TINY, supervised=True, recipe=SHORT, random_state=0).fit(images, names)
    assert list(classifier.classes_) == ["one", "zero"]
    scores = classifier.decision_function(images)
    assert scores.shape == (60,)
    assert classifier.coef_.shape == (1, 8 * 4 * 4)
    assert np.array_equal(classifier.predict(images) == "zero", scores > 0)
    assert classifier.score(images, names) == 1.0


def test_small_network_gains_by_labels(digits: Data) -> None:
    images, labels = digits[0].astype(np.float32), digits[1]
    classifier = CKNClassifier(SMALL, recipe=replace(SMALL_DATA, epochs=8), random_state=0)
    without, with_labels = errors(classifier, (images[:300], labels[:300]), (images[-900:], labels[-900:]))
    assert with_labels < 0.8 * without


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_small_network_makes_half_the_errors_by_labels(digits: Data, seed: int) -> None:
    images, labels = digits[0].astype(np.float32), digits[1]
    train, test = (images[:900], labels[:900]), (images[900:], labels[900:])
    without, with_labels = errors(CKNClassifier(SMALL, random_state=seed), train, test)
    assert with_labels < 0.5 * without  # 4.5% and 1.5%


@pytest.mark.slow
def test_default_network_is_as_good_as_before(digits: Data) -> None:
    """Of 897 images it gets about 5 wrong without training by labels: there is nothing left to gain, and nothing lost."""
    images, labels = digits[0].astype(np.float32), digits[1]
    classifier = CKNClassifier(random_state=0)
    found = errors(classifier, (images[:900], labels[:900]), (images[900:], labels[900:]))
    assert max(found) < 0.01
    assert classifier.history_[-1]["objective"] < 0.8 * classifier.history_[0]["objective"]


# -- mistakes and warnings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"recipe": {"epochs": 3}}, TypeError, r"recipe must be a Recipe or None, got \{'epochs': 3\}"),
        ({"recipe": "paper"}, TypeError, "recipe must be a Recipe or None, got 'paper'"),
        ({"supervised": "yes"}, ValueError, "supervised must be true or false, got 'yes'"),
        ({"supervised": None}, ValueError, "supervised must be true or false, got None"),
        ({"regularization": 0.0}, ValueError, "regularization must be a number above 0, got 0"),
        ({"regularization": "1/n"}, ValueError, "regularization must be a number above 0, got '1/n'"),
        ({"regularization": np.nan}, ValueError, "regularization must be a number above 0, got nan"),
    ],
)
@pytest.mark.parametrize("kind", [CKNClassifier, CKNRegressor])
def test_bad_settings_are_refused(
    digits: Data, kind: Any, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    estimator = kind(TINY, **{"supervised": True, **settings})
    with pytest.raises(error, match=message):
        estimator.fit(digits[0][:20], digits[1][:20])
    with pytest.raises(NotFittedError):
        estimator.predict(digits[0][:20])


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_regression_needs_the_square_loss(spots: Data, loss: Any) -> None:
    with pytest.raises(ValueError, match=f"CKNRegressor needs a recipe whose loss is 'square', got '{loss}'"):
        CKNRegressor(TINY, supervised=True, recipe=Recipe(loss=loss)).fit(*spots)
    assert CKNRegressor(TINY, recipe=Recipe(loss=loss), random_state=0).fit(*spots).score(*spots) > 0.5  # not used


@pytest.mark.parametrize("supervised", [False, True])
def test_bad_targets_are_refused(spots: Data, supervised: bool) -> None:
    images, centres = spots[0][:30], spots[1][:30]
    regressor = CKNRegressor(TINY, supervised=supervised)
    for bad, message in ((np.nan, "Input y contains NaN"), (np.inf, "Input y contains infinity")):
        for targets in (centres.copy(), centres[:, 0].copy()):
            targets[3] = bad
            with pytest.raises(ValueError, match=message):
                regressor.fit(images, targets)
    for targets in (centres[:-1], centres[:-1, 0]):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            regressor.fit(images, targets)
    with pytest.raises(ValueError, match="dim 3"):
        regressor.fit(images, centres[:, :, None])
    with pytest.raises(ValueError, match="could not convert string to float"):
        regressor.fit(images, np.full(30, "a"))
    with pytest.raises(ValueError, match="requires y to be passed"):
        regressor.fit(images, None)
    classifier = CKNClassifier(TINY, supervised=supervised)
    with pytest.raises(ValueError, match="contains NaN"):
        classifier.fit(images, np.where(np.arange(30) == 3, np.nan, 1.0))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier.fit(images, np.arange(29) % 3)
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class"):
        classifier.fit(images, np.ones(30))


def test_learning_rate_far_too_high(digits: Data) -> None:
    images, labels = digits[0][:60], digits[1][:60]
    recipe = replace(SHORT, learning_rate=1e6, epochs=3)
    with pytest.warns(ConvergenceWarning, match="3 of 3 epochs made the objective worse and were undone; lower") as caught:
        classifier = CKNClassifier(TINY, supervised=True, recipe=recipe, random_state=0).fit(images, labels)
    assert [warning.filename for warning in caught] == [__file__]
    assert same(state(classifier.network_), state(CKNTransformer(TINY, random_state=0).fit(images).network_))
    assert classifier.score(images, labels) > 0.9
    recipe = replace(recipe, epochs=8, schedule="constant", weights="sgd", weights_learning_rate=1e6)
    with pytest.raises(TrainingDivergedError, match="lower learning_rate in the recipe"):
        CKNClassifier(TINY, supervised=True, recipe=recipe, random_state=0).fit(images, labels)


def test_an_epoch_that_diverges_is_a_warning_of_its_own_schedule(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-tracking is no news, but with another schedule an epoch is lost."""
    real = train_supervised

    def diverging(*args: Any, **kwargs: Any) -> Any:
        warnings.warn("the objective was nan after epoch 1; the epoch is undone and so on", RuntimeWarning, stacklevel=2)
        result = real(*args, **kwargs)
        result.history[1]["accepted"] = False
        return result

    monkeypatch.setattr("sckn.estimators.train_supervised", diverging)
    images, labels = digits[0][:60], digits[1][:60]
    CKNClassifier(TINY, supervised=True, recipe=SHORT, random_state=0).fit(images, labels)  # no warning
    recipe = replace(SHORT, schedule="cosine", weights="sgd")
    with pytest.warns(ConvergenceWarning, match="1 of 2 epochs made the objective worse and were undone"):
        CKNClassifier(TINY, supervised=True, recipe=recipe, random_state=0).fit(images, labels)


def test_unfinished_solution_is_a_warning(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    real = train_supervised

    def unfinished(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        for record in result.history:
            record["solver_gradient"] = 0.01
        return result

    monkeypatch.setattr("sckn.estimators.train_supervised", unfinished)
    with pytest.warns(ConvergenceWarning, match="relative gradient of 1.0e-02, above the tolerance 1.0e-04; raise") as caught:
        CKNClassifier(TINY, supervised=True, random_state=0).fit(digits[0][:30], digits[1][:30])
    assert [warning.filename for warning in caught] == [__file__]
    CKNRegressor(TINY, supervised=True, random_state=0).fit(digits[0][:30], digits[1][:30])  # a closed form


# -- regression --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [60, 300])  # fewer and more than the 96 features
@pytest.mark.parametrize("strength", [None, 0.03])
@pytest.mark.parametrize("outputs", [0, 1, 2])
def test_agrees_with_ridge_regression(spots: Data, count: int, strength: float | None, outputs: int) -> None:
    images, held_out = spots[0][:count], spots[0][300:]
    y = 100 + 20 * spots[1][:count, :outputs] if outputs else 100 + 20 * spots[1][:count, 0]
    regressor = CKNRegressor(SMALL, random_state=0, regularization=strength).fit(images, y)
    transformer = CKNTransformer(SMALL, random_state=0).fit(images)
    features = transformer.transform(images)
    scale = FEATURE_NORM / np.linalg.norm(features, axis=1).mean()
    alpha = count * (1 / count if strength is None else strength) / scale**2
    ridge = Ridge(alpha=alpha, fit_intercept=False).fit(features, y - y.mean(axis=0))
    expected = ridge.predict(transformer.transform(held_out)).reshape(100, *y.shape[1:]) + y.mean(axis=0)
    found = regressor.predict(held_out)
    assert found.shape == (100, *y.shape[1:])
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert np.allclose(regressor.intercept_, y.mean(axis=0))
    assert np.allclose(regressor.coef_, ridge.coef_.reshape(regressor.coef_.shape), rtol=1e-5, atol=1e-6)
    assert regressor.coef_.shape == (*y.shape[1:], 96)
    assert np.shape(regressor.intercept_) == y.shape[1:]
    assert np.array_equal(found, transformer.transform(held_out) @ regressor.coef_.T + regressor.intercept_)


def test_supervised_regression_equals_the_library_by_hand(spots: Data) -> None:
    images, centres = spots[0][:100], spots[1][:100]
    regressor = CKNRegressor(TINY, supervised=True, recipe=SHORT_SQUARE, random_state=3).fit(images, centres)
    mean, deviation = centres.mean(axis=0), centres.std(axis=0)
    network = fit_unsupervised(CKN(TINY).double(), images, seed=seed_of(3))
    targets = (centres - mean) / deviation
    settings: dict[str, Any] = {"regularization": 1 / 100, "recipe": SHORT_SQUARE, "seed": seed_of(3)}
    model = train_supervised(network, images, targets, **settings).model
    expected = mean + deviation * model.predict(torch.from_numpy(spots[0])).numpy()
    assert np.allclose(regressor.predict(spots[0]), expected, rtol=1e-8)
    assert np.allclose(regressor.intercept_, mean)
    assert np.allclose(encode(network, spots[0]).numpy() @ regressor.coef_.T + mean, expected, rtol=1e-8)
    assert regressor.score(spots[0], spots[1]) == pytest.approx(r2_score(spots[1], regressor.predict(spots[0])))


def test_outputs_do_not_depend_on_each_other_without_labels_for_the_filters(spots: Data) -> None:
    images, centres = spots[0][:100], spots[1][:100]
    together = CKNRegressor(TINY, random_state=0).fit(images, centres)
    for column in range(2):
        alone = CKNRegressor(TINY, random_state=0).fit(images, centres[:, column])
        assert np.allclose(together.predict(images)[:, column], alone.predict(images), rtol=1e-9)
        assert np.allclose(together.coef_[column], alone.coef_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize(("factor", "shift"), [(1e-200, 0.0), (1e3, -50.0), (1e100, 0.0), (1.0, 1e6)])
def test_units_do_not_matter(spots: Data, supervised: bool, factor: float, shift: float) -> None:
    images, centres = spots[0][:80], spots[1][:80]
    regressor = CKNRegressor(TINY, supervised=supervised, recipe=SHORT_SQUARE, random_state=0)
    expected = regressor.fit(images, centres).predict(images)
    found = regressor.fit(images, factor * centres + shift).predict(images)
    assert np.allclose((found - shift) / factor, expected, rtol=1e-6)


@pytest.mark.parametrize("supervised", [False, True])
def test_single_precision(spots: Data, supervised: bool) -> None:
    images, centres = spots[0][:200], 1e6 + spots[1][:200, 0]
    regressor = CKNRegressor(SMALL, supervised=supervised, recipe=SHORT_SQUARE, random_state=0)
    expected = regressor.fit(images, centres).score(images, centres)
    regressor.fit(images.astype(np.float32), centres)
    assert regressor.score(images.astype(np.float32), centres) == pytest.approx(expected, abs=0.02)
    assert next(regressor.network_.parameters()).dtype == torch.float32
    assert regressor.predict(images).dtype == np.float64


@pytest.mark.parametrize("supervised", [False, True])
def test_targets_of_all_kinds(spots: Data, supervised: bool) -> None:
    images, centres = spots[0][:60], spots[1][:60].round()
    regressor = CKNRegressor(TINY, supervised=supervised, recipe=SHORT_SQUARE, random_state=0)
    expected = regressor.fit(images, centres).predict(images)
    for y in (centres.tolist(), torch.from_numpy(centres), centres.astype(int), np.asfortranarray(centres)):
        assert np.allclose(regressor.fit(images, y).predict(images), expected, rtol=1e-9)
    one = regressor.fit(images, centres[:, 0]).predict(images)
    column = regressor.fit(images, centres[:, :1]).predict(images)
    assert one.shape == (60,)
    assert np.array_equal(column, one[:, None])


@pytest.mark.parametrize("supervised", [False, True])
def test_constant_targets(spots: Data, supervised: bool) -> None:
    images, centres = spots[0][:60], spots[1][:60, 0]
    regressor = CKNRegressor(TINY, supervised=supervised, recipe=SHORT_SQUARE, random_state=0)
    constant = np.full(60, 0.1)  # whose mean in floating point is not 0.1
    assert np.array_equal(regressor.fit(images, constant).predict(images), constant)
    assert not regressor.coef_.any()
    found = regressor.fit(images, np.stack([constant, centres], axis=1)).predict(images)
    assert np.allclose(found[:, 0], 0.1, atol=1e-12)
    assert np.allclose(found[:, 1], regressor.fit(images, centres).predict(images), rtol=1e-6)
    assert regressor.set_params(network=None).fit(images[:1], centres[:1]).predict(images[:1]) == centres[0]


def test_regression_in_pipeline_and_grid_search(spots: Data) -> None:
    rows, centres = spots[0][:150].reshape(150, 64), spots[1][:150]
    regressor = CKNRegressor(TINY, image_shape=(1, 8, 8), supervised=True, recipe=SHORT_SQUARE, random_state=0)
    pipeline = make_pipeline(MinMaxScaler(), regressor)
    grid = {"cknregressor__regularization": [1e-3, 1e6], "cknregressor__supervised": [False, True]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score=np.nan).fit(rows, centres)
    assert search.best_params_["cknregressor__regularization"] == 1e-3
    assert search.best_score_ > 0.8


def test_regression_gains_by_training_the_filters(waves: Data) -> None:
    images, directions = waves
    train, test = (images[:300], directions[:300]), (images[300:], directions[300:])
    without, with_labels = errors(CKNRegressor(TINY, random_state=0), train, test)
    assert with_labels < 0.5 * without
    assert with_labels < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CKNClassifier, CKNRegressor])
def test_gpu_trains_and_pickles_without_one(digits: Data, kind: Any) -> None:
    images, labels = digits[0][:300], digits[1][:300]
    recipe = SHORT if kind is CKNClassifier else SHORT_SQUARE
    automatic, on_cpu = (
        kind(SMALL, supervised=True, recipe=recipe, random_state=0, device=device).fit(images, labels)
        for device in ("auto", "cpu")
    )
    assert automatic.score(images, labels) == pytest.approx(on_cpu.score(images, labels), abs=0.05)
    assert all(parameter.device.type == "cpu" for parameter in automatic.network_.parameters())
    assert np.array_equal(pickle.loads(pickle.dumps(automatic)).predict(images), automatic.predict(images))
