"""Errors, intervals and confusion matrices against scipy and scikit-learn; how they are shown."""

import builtins
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix as reference_confusion
from test_curves import without
from tiny_classifier import CLASSES, files_in, tiny_classifier

from sckn.confusion import draw_confusion, evaluation_text
from sckn.data.labelled import LabelledImages
from sckn.evaluation import Evaluation, confusion_matrix, evaluate, wilson_interval
from sckn.extras import MissingPackageError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 3, 12, 12), dtype=np.uint8)


@pytest.mark.parametrize("count", [1, 2, 30, 10_000])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_interval_is_that_of_wilson(count: int, part: float, confidence: float) -> None:
    wrong = round(part * count)
    expected = binomtest(wrong, count).proportion_ci(confidence, method="wilson")
    assert wilson_interval(wrong, count, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(("wrong", "count"), [(0, 0), (-1, 3), (4, 3)])
def test_an_interval_needs_images(wrong: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"got {wrong} of {count}"):
        wilson_interval(wrong, count)


def test_the_confusion_matrix_is_that_of_scikit_learn() -> None:
    labels, answers = RANDOM.integers(0, 7, 500), RANDOM.integers(0, 8, 500)  # an answer that is never right
    found = confusion_matrix(labels, answers, 9)  # and a class that never comes
    np.testing.assert_array_equal(found, reference_confusion(labels, answers, labels=range(9)))


def evaluation() -> Evaluation:
    return Evaluation(("cat", "dog", "bird"), np.array([[7, 2, 1], [0, 5, 0], [0, 0, 0]]))


def test_figures_of_an_evaluation() -> None:
    found = evaluation()
    assert (found.images, found.wrong, found.error) == (15, 3, 20.0)
    assert found.class_errors == [30.0, 0.0, None]
    expected = binomtest(3, 15).proportion_ci(method="wilson")
    assert found.interval == pytest.approx((100 * expected.low, 100 * expected.high))
    assert found.confusions(5) == [("cat", "dog", 2), ("cat", "bird", 1)]
    assert found.confusions(1) == [("cat", "dog", 2)]
    again = Evaluation.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again.to_dict() == found.to_dict()


@pytest.mark.parametrize("confusion", [[[1, 2]], [[0, 0], [0, 0]], [[-1, 3], [0, 1]]])
def test_a_damaged_evaluation_is_refused(confusion: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Evaluation.from_dict({"classes": ["a", "b"], "confusion": confusion})


def test_a_classifier_is_evaluated_by_names_or_numbers() -> None:
    classifier = tiny_classifier()
    labels = RANDOM.integers(0, 3, 40)
    answers = classifier.predict(IMAGES).argmax(1).numpy()
    expected = reference_confusion(labels, answers, labels=range(3))
    by_number = evaluate(classifier, LabelledImages(IMAGES, labels), batch_size=7)
    np.testing.assert_array_equal(by_number.confusion, expected)
    assert by_number.error == pytest.approx(100 * np.mean(labels != answers))
    # other classes, in another order; one that the classifier does not know has no images
    order = ("zebra", "a bird", "dog", "cat")
    by_name = evaluate(classifier, LabelledImages(IMAGES, np.array([3, 2, 1])[labels], order))
    np.testing.assert_array_equal(by_name.confusion, expected)
    assert by_name.classes == CLASSES


def test_what_cannot_be_evaluated_is_named() -> None:
    classifier = tiny_classifier()
    with pytest.raises(
        ValueError, match="images of the class 'zebra', which the model does not know; it knows cat, dog, a bird"
    ):
        evaluate(classifier, LabelledImages(IMAGES[:2], np.array([0, 1]), ("cat", "zebra")))
    with pytest.raises(ValueError, match="images of the class '3', which the model does not know"):
        evaluate(classifier, LabelledImages(IMAGES[:2], np.array([0, 3])))
    with pytest.raises(ValueError, match="there are no images to test with"):
        evaluate(classifier, LabelledImages(IMAGES[:0], np.array([], np.int64)))
    with pytest.raises(ValueError, match="resize them"):
        evaluate(classifier, LabelledImages(IMAGES[:2, :, 2:, 2:], np.array([0, 1])))


def test_the_text_shows_all_of_it() -> None:
    assert evaluation_text(evaluation()).splitlines() == [
        "test error 20.00 %, 95 % interval 7.05 to 45.19 %: 3 of 15 images wrong",
        "",
        "class        error   images",
        "cat        30.00 %       10",
        "dog         0.00 %        5",
        "bird           -          0",
        "",
        "taken for   cat   dog  bird",
        "cat           7     2     1",
        "dog           .     5     .",
        "bird          .     .     .",
    ]


def test_classes_whose_names_begin_alike_are_told_apart() -> None:
    text = evaluation_text(Evaluation(("flower red", "flower white", "tree"), np.eye(3, dtype=np.int64)))
    assert "taken for flower r flower w     tree" in text
    assert "flower white        .        1        ." in text
    long = tuple(f"{'a' * 60} {number}" for number in range(3))
    wide = evaluation_text(Evaluation(long, np.array([[1, 2, 0], [0, 1, 0], [0, 0, 1]])))
    assert wide.splitlines()[-2:] == ["most frequent mistakes", f"       2  {long[0]} taken for {long[1]}"]


def test_of_many_classes_the_most_frequent_mistakes_are_shown() -> None:
    confusion = 5 * np.eye(100, dtype=np.int64)
    confusion[3, 17], confusion[9, 4] = 2, 3
    text = evaluation_text(Evaluation(tuple(f"class {i}\n" for i in range(100)), confusion)).splitlines()
    assert text[-3:] == ["most frequent mistakes", r"       3  'class 9\n' taken for 'class 4\n'", text[-1]]
    assert max(map(len, text)) < 100


@pytest.mark.parametrize("classes", [3, 30])
def test_the_picture_can_be_opened(classes: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    confusion = RANDOM.integers(0, 9, (classes, classes))
    path = draw_confusion(Evaluation(tuple(f"$c{i}" for i in range(classes)), confusion), tmp_path / "a.png", "of $a$ model")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert len(np.unique(np.asarray(image.convert("L")))) > 20


def test_without_matplotlib_a_picture_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", without("matplotlib"))
    with pytest.raises(MissingPackageError, match=r"^drawing the confusion matrix needs matplotlib; install it"):
        draw_confusion(evaluation(), tmp_path / "a.png", "a model")
    assert files_in(tmp_path) == set()
