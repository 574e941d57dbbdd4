"""Experiments with a recipe, from the choice of lambda to the test error, on striped images; nothing is trained twice."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from train_tiny import striped

import sckn
from sckn import CKN, LayerConfig, NetworkConfig
from sckn.data.labelled import LabelledImages
from sckn.model import KernelModel
from sckn.processes import Processes
from sckn.training import experiment as experiments
from sckn.training import runs
from sckn.training import with_labels as module
from sckn.training.curves import draw_curves
from sckn.training.experiment import Experiment, SeedReport, prepared_images
from sckn.training.recipe import Recipe
from sckn.training.runs import RunFolder
from sckn.training.state import EpochRecord, TrainingState
from sckn.training.with_labels import run_with_labels

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=3, batch_size=32, learning_rate=0.05, solver_tolerance=1e-2)
BRIEF = replace(RECIPE, epochs=0)
NETWORK = NetworkConfig(3, (LayerConfig(6, 3, subsampling=3, inverse_root="moving_frame"),))
TINY = Experiment("tiny", "cifar10", NETWORK, RECIPE, patches=500, iterations=3, lambda_exponents=(2, 10))

FILES = {"config.json", "environment.json", "metrics.jsonl", "last.safetensors", "model.safetensors", "curves.png"}
FINAL_FILES = FILES | {"classifier.safetensors", "evaluation.json"}
RUN_FILES = {"config.json", "environment.json", "report.json", "report.html"}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 images for training, 60 for the test, and curves that take no time."""
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
    monkeypatch.setattr(runs, "draw_curves", lambda records, path, title: path.write_bytes(b"a picture"))


def run(experiment: Experiment, folder: Path, **settings: Any) -> list[SeedReport]:
    return run_with_labels(experiment, Path("data"), CPU, folder, **settings)


def figures(reports: list[SeedReport]) -> list[dict[str, Any]]:
    """What the reports say, but for the time it took."""
    return [{**asdict(report), "seconds": None} for report in reports]


def metrics(folder: Path) -> list[EpochRecord]:
    """Those of each epoch, but for the time it took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def same_tensors(left: Path, right: Path) -> bool:
    one, other = (sckn.load(path).state_dict() for path in (left, right))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Calls:
    """What a function of the module was called with; it still does its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.arguments: list[tuple[Any, ...]] = []
        self.settings: list[dict[str, Any]] = []
        self.function: Callable[..., Any] = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self.arguments.append(arguments)
        self.settings.append(settings)
        return self.function(*arguments, **settings)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch, "train_supervised")


@pytest.fixture
def kmeans(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch, "fit_unsupervised")


class Courses:
    """In the place of each training one with these validation errors, epoch by epoch; None is an epoch that was undone.

    What the network really learns is not asked for then.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, courses: dict[int, list[float | None]]) -> None:
        self.courses, self.lengths = courses, []
        monkeypatch.setattr(module, "train_supervised", self)
        monkeypatch.setattr(module, "fit_unsupervised", lambda network, images, **settings: network)

    def __call__(self, network: CKN, images: Tensor, labels: Tensor, **settings: Any) -> module.TrainingResult:
        exponent = round(np.log2(settings["regularization"] * len(images)))
        epochs, held_out = settings["recipe"].epochs, settings["validation"] is not None
        self.lengths.append((exponent, epochs, held_out))
        for epoch in range(epochs + 1):
            error = self.courses[exponent][epoch] if held_out else None
            accepted = error is not None or not held_out
            record = {"epoch": epoch, "validation_error": error if accepted else 0.0, "accepted": accepted}
            figures = {"objective": 1.0, "train_error": 1.0, "solver_gradient": 0.1, "seconds": {"filters": 1.0}}
            settings["store"].record({**record, **figures})
            settings["store"].save_state(TrainingState({"nothing": torch.zeros(1)}, {"epoch": epoch}))
        height, width = NETWORK.output_size(12, 12)
        return module.TrainingResult(KernelModel(network, torch.zeros(6 * height * width, 3)), [])


# -- the choice -------------------------------------------------------------------------------------------------------


def test_an_experiment_learns_and_keeps_every_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_the_final_one(records: list[EpochRecord], path: Path, title: str) -> None:
        if title == "final":
            draw_curves(records, path, title)

    monkeypatch.setattr(runs, "draw_curves", draw_the_final_one)
    said: list[str] = []
    (report,) = run(TINY, tmp_path / "run", say=said.append)
    folder = tmp_path / "run" / "seed-0"
    assert {path.name for path in folder.iterdir()} == {"lambda-2^2", "lambda-2^10", "final"}
    for name in ("lambda-2^2", "lambda-2^10", "final"):
        files = FINAL_FILES if name == "final" else FILES - {"curves.png"} | {"best.safetensors"}
        assert {path.name for path in (folder / name).iterdir()} == files
    assert (folder / "final" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"seed-0", *RUN_FILES}
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == json.loads(json.dumps(TINY.to_dict()))

    # the choice is the one that the folders of the selection show
    errors = {i: [epoch["validation_error"] for epoch in metrics(folder / f"lambda-2^{i}")] for i in (2, 10)}
    assert [len(course) for course in errors.values()] == [4, 4]
    assert report.validation_errors == {i: min(course) for i, course in errors.items()}
    assert len(set(report.validation_errors.values())) == 2  # or there would be nothing to choose
    assert report.lambda_exponent == min(report.validation_errors, key=report.validation_errors.__getitem__)
    best = report.lambda_exponent
    epochs = errors[best].index(min(errors[best]))
    assert report.epochs == epochs > 0
    final = json.loads((folder / "final" / "config.json").read_text())
    assert final == {**asdict(replace(RECIPE, epochs=epochs)), "seed": 0, "lambda_exponent": best, "images": 150}
    last = metrics(folder / "final")
    assert [epoch["epoch"] for epoch in last] == list(range(epochs + 1))
    assert all(epoch["validation_error"] is None for epoch in last)
    assert report.train_error == [epoch["train_error"] for epoch in last if epoch["accepted"]][-1]

    # what was said and written is what was found
    assert said == [
        "seed 0: lambda = 2^2/n, 3 epochs, 120 of 150 images",
        "seed 0: lambda = 2^10/n, 3 epochs, 120 of 150 images",
        f"seed 0: final training with lambda = 2^{best}/n, {epochs} epochs",
    ]
    assert json.loads((tmp_path / "run" / "report.json").read_text()) == json.loads(json.dumps([asdict(report)]))
    assert set(report.seconds) == {"preparation", "choice of lambda", "final training", "test"}
    seconds = [json.loads(line)["seconds"] for line in (folder / "final" / "metrics.jsonl").read_text().splitlines()]
    assert ["closing" in epoch for epoch in seconds] == [False] * epochs + [True]
    assert report.seconds["final training"] == pytest.approx(sum(sum(epoch.values()) for epoch in seconds), abs=0.006)

    # the model that was kept has the test error of the report
    model = sckn.load(folder / "final" / "model.safetensors")
    assert isinstance(model, KernelModel)
    test = striped(60, 1)
    scores = model.predict(prepared_images(TINY, test.images, CPU))
    wrong = int(np.sum(scores.argmax(1).numpy() != test.labels))
    assert report.test_error == 100 * wrong / 60 < 40  # guessing gives 67


def test_the_choice_does_not_look_at_the_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = run(TINY, tmp_path / "straight")
    spoilt = LabelledImages(np.zeros((60, 3, 12, 12), np.uint8), np.full(60, 2))
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), spoilt))
    other = run(TINY, tmp_path / "spoilt")
    assert straight[0].test_error != other[0].test_error
    assert figures([replace(report, test_error=None) for report in straight]) == figures(
        [replace(report, test_error=None) for report in other]
    )
    places = [tmp_path / name / "seed-0" / "final" / "model.safetensors" for name in ("straight", "spoilt")]
    assert same_tensors(*places)


def test_the_choice_sees_the_images_that_it_holds_out_only_for_validation(tmp_path: Path, trainings: Calls) -> None:
    run(replace(TINY, seeds=(3,), whitening_power=0.0, recipe=BRIEF), tmp_path / "run")
    everything = striped(150, 0)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(3)).numpy()
    expected, labels = everything.images[order].astype(np.float32) / 255, everything.labels[order]
    *selection, final = zip(trainings.arguments, trainings.settings, strict=True)
    assert len(selection) == 2
    for (_, images, targets), settings in selection:
        np.testing.assert_array_equal(images.numpy(), expected[:120])
        np.testing.assert_array_equal(targets.numpy(), labels[:120])
        np.testing.assert_array_equal(settings["validation"][0].numpy(), expected[120:])
        np.testing.assert_array_equal(settings["validation"][1].numpy(), labels[120:])
    (_, images, targets), settings = final
    np.testing.assert_array_equal(images.numpy(), expected)
    np.testing.assert_array_equal(targets.numpy(), labels)
    assert settings["validation"] is None


def test_lambda_is_per_image_of_the_set_trained_on(tmp_path: Path, trainings: Calls) -> None:
    (report,) = run(replace(TINY, validation=0.3, recipe=BRIEF), tmp_path / "run")
    given = [settings["regularization"] for settings in trainings.settings]
    assert given == [2.0**2 / 105, 2.0**10 / 105, 2.0**report.lambda_exponent / 150]


def test_of_equal_errors_the_strongest_regularisation_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Courses(monkeypatch, {-3: [9.0, 5.0, 5.0, 5.0], 1: [9.0, 9.0, 9.0, 5.0], 0: [9.0, 6.0, 6.0, 6.0]})
    (report,) = run(replace(TINY, lambda_exponents=(-3, 1, 0)), tmp_path / "run")
    assert report.validation_errors == {-3: 5.0, 1: 5.0, 0: 6.0}
    assert (report.lambda_exponent, report.epochs) == (1, 3)


@pytest.mark.parametrize("schedule", ["halving", "constant"])
def test_the_final_training_ends_at_the_best_epoch(tmp_path: Path, schedule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the best ones; what was found in an epoch that was undone does not count."""
    courses = Courses(monkeypatch, {2: [9.0, 8.0, 8.0, 8.0], 10: [9.0, None, 4.0, 4.0]})
    experiment = replace(TINY, recipe=replace(RECIPE, schedule=schedule))
    (report,) = run(experiment, tmp_path / "run")
    assert (report.validation_errors, report.lambda_exponent, report.epochs) == ({2: 8.0, 10: 4.0}, 10, 2)
    assert courses.lengths == [(2, 3, True), (10, 3, True), (10, 2, False)]


def test_a_training_that_gained_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with monkeypatch.context() as patch:
        Courses(patch, {2: [8.0, 9.0, None, 8.5], 10: [9.0, 9.0, 9.0, 9.0]})
        run(TINY, tmp_path / "courses", say=said.append)
    assert any(each.startswith("seed 0: the filters are those of k-means, for no epoch had fewer errors") for each in said)
    divergent = replace(RECIPE, learning_rate=1e6, epochs=2, schedule="halving")
    run(replace(TINY, recipe=divergent, lambda_exponents=(2,)), tmp_path / "divergent", say=said.append)
    assert re.match(r"seed 0: (\d) of \1 epochs made the objective worse and were undone; lower learning_rate", said[-1])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_where_the_rate_falls_over_all_epochs_the_last_one_counts(
    tmp_path: Path, schedule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    courses = Courses(monkeypatch, {2: [9.0, 1.0, 8.0, 7.0], 10: [9.0, 8.0, 6.0, None]})
    experiment = replace(TINY, recipe=replace(RECIPE, schedule=schedule))
    (report,) = run(experiment, tmp_path / "run")
    assert (report.validation_errors, report.lambda_exponent, report.epochs) == ({2: 7.0, 10: 6.0}, 10, 3)
    assert courses.lengths == [(2, 3, True), (10, 3, True), (10, 3, False)]


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_where_there_is_nothing_to_choose_only_the_final_network_is_trained(
    tmp_path: Path, schedule: Any, trainings: Calls
) -> None:
    experiment = replace(TINY, lambda_exponents=(5,), recipe=replace(RECIPE, schedule=schedule))
    (report,) = run(experiment, tmp_path / "run")
    assert [settings["recipe"].epochs for settings in trainings.settings] == [3]
    assert (report.validation_errors, report.lambda_exponent, report.epochs) == ({}, 5, 3)
    assert [path.name for path in (tmp_path / "run" / "seed-0").iterdir()] == ["final"]
    # asked for the validation error, it is found all the same
    (report,) = run(experiment, tmp_path / "validation", test=False)
    assert [settings["recipe"].epochs for settings in trainings.settings] == [3, 3]
    assert list(report.validation_errors) == [5]


def test_with_halving_a_single_lambda_is_trained_for_the_number_of_epochs(tmp_path: Path, trainings: Calls) -> None:
    (report,) = run(replace(TINY, lambda_exponents=(10,)), tmp_path / "run")
    assert [settings["recipe"].epochs for settings in trainings.settings] == [3, report.epochs]


@pytest.mark.parametrize("schedule", ["halving", "cosine"])
def test_selection_epochs_shorten_the_selection_alone(tmp_path: Path, schedule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    courses = Courses(monkeypatch, {2: [9.0, 8.0], 10: [3.0, 4.0]})
    experiment = replace(TINY, selection_epochs=1, recipe=replace(RECIPE, schedule=schedule))
    (report,) = run(experiment, tmp_path / "run")
    assert courses.lengths == [(2, 1, True), (10, 1, True), (10, 3, False)]
    assert report.validation_errors == {2: 8.0, 10: 4.0 if schedule == "cosine" else 3.0}
    assert report.epochs == 3


def test_every_seed_has_its_own_order_filters_and_folder(tmp_path: Path, trainings: Calls, kmeans: Calls) -> None:
    reports = run(replace(TINY, seeds=(0, 5), recipe=BRIEF), tmp_path / "run")
    assert [report.seed for report in reports] == [0, 5]
    assert [settings["seed"] for settings in trainings.settings] == [0, 0, 0, 5]
    assert [settings["seed"] for settings in kmeans.settings] == [0, 0, 0, 5]
    images = [images for _, images, _ in trainings.arguments]
    assert torch.equal(images[0], images[1])
    assert images[2].shape == images[3].shape
    assert not torch.equal(images[2], images[3])
    assert {path.name for path in (tmp_path / "run").glob("seed-*")} == {"seed-0", "seed-5"}
    assert [report["seed"] for report in json.loads((tmp_path / "run" / "report.json").read_text())] == [0, 5]


def test_lambda_and_epochs_are_chosen_with_the_first_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    courses = Courses(monkeypatch, {2: [9.0, 8.0, 8.0, 8.0], 10: [9.0, 5.0, 4.0, 6.0]})
    first, second = run(replace(TINY, seeds=(0, 5)), tmp_path / "run")
    assert courses.lengths == [(2, 3, True), (10, 3, True), (10, 2, False), (10, 2, False)]
    assert first.validation_errors == {2: 8.0, 10: 4.0}
    assert second.validation_errors == {}
    assert (second.lambda_exponent, second.epochs) == (10, 2)


def test_without_a_test_every_seed_is_judged(tmp_path: Path) -> None:
    reports = run(replace(TINY, seeds=(0, 5), recipe=BRIEF), tmp_path / "run", test=False)
    assert [list(report.validation_errors) for report in reports] == [[2, 10], [2, 10]]
    assert [report.test_error for report in reports] == [None, None]


@pytest.mark.parametrize(("asked", "seen"), [(None, [120, 120, 150]), (40, [40, 40, 40]), (130, [120, 120, 130])])
def test_filters_come_from_so_many_images_of_those_trained_on(
    tmp_path: Path, asked: int | None, seen: list[int], trainings: Calls, kmeans: Calls
) -> None:
    run(replace(TINY, kmeans_images=asked, batch_size=64, recipe=BRIEF), tmp_path / "run")
    assert [len(images) for _, images in kmeans.arguments] == seen
    for (_, images), (_, trained_on, _), settings in zip(kmeans.arguments, trainings.arguments, kmeans.settings, strict=True):
        assert torch.equal(images, trained_on[: len(images)])
        assert {**settings, "processes": None} == {
            "patches": 500,
            "iterations": 3,
            "batch_size": 64,
            "seed": 0,
            "processes": None,
        }


class Unseen:
    """A test set that must not be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the test set was asked for its {name}")


def test_for_validation_the_test_set_is_not_touched_and_nothing_trained_on_all(
    tmp_path: Path, trainings: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_test = run(TINY, tmp_path / "straight")
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), Unseen()))
    trainings.arguments.clear()
    (report,) = run(TINY, tmp_path / "run", test=False)
    assert [len(images) for _, images, _ in trainings.arguments] == [120, 120]
    assert report.validation_errors == with_test[0].validation_errors
    assert (report.lambda_exponent, report.epochs) == (with_test[0].lambda_exponent, with_test[0].epochs)
    assert (report.test_error, report.train_error, report.gradient) == (None, None, None)
    assert {path.name for path in (tmp_path / "run" / "seed-0").iterdir()} == {"lambda-2^2", "lambda-2^10"}
    # the choice stands: later only the final training is left
    monkeypatch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
    trainings.arguments.clear()
    epochs = recorded_epochs(monkeypatch)
    assert figures(run(TINY, tmp_path / "run", resume=True)) == figures(with_test)
    assert [place for place, _ in epochs] == ["final"] * len(epochs)


@pytest.mark.parametrize(
    "recipe",
    [
        replace(RECIPE, epochs=1, weights="sgd", schedule="cosine"),
        replace(RECIPE, epochs=1, averaging=0.9, flip=True, shift=1, preconditioner=0.1, loss="logistic"),
        BRIEF,
    ],
    ids=["sgd", "everything", "no epoch"],
)
def test_the_same_seed_gives_the_same_figures(tmp_path: Path, recipe: Recipe) -> None:
    experiment = replace(TINY, recipe=recipe)
    reports = [run(experiment, tmp_path / name) for name in ("one", "other")]
    assert figures(reports[0]) == figures(reports[1])
    for name in ("lambda-2^2", "lambda-2^10", "final"):
        one, other = (tmp_path / run / "seed-0" / name for run in ("one", "other"))
        assert metrics(one) == metrics(other)
        assert same_tensors(one / "model.safetensors", other / "model.safetensors")
    assert json.dumps([asdict(report) for report in reports[0]], allow_nan=False)  # so that it can be written


# -- interrupted ------------------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Stands for whatever ends a process."""


def recorded_epochs(monkeypatch: pytest.MonkeyPatch, stop_at: tuple[str, int] | None = None) -> list[tuple[str, int]]:
    """The folder and the number of each epoch that is recorded from now on; `stop_at` ends all at that one."""
    epochs: list[tuple[str, int]] = []
    record = RunFolder.record

    def recording(self: RunFolder, figures: EpochRecord) -> None:
        epochs.append((self.path.name, figures["epoch"]))
        if epochs[-1] == stop_at:
            raise StoppedError
        record(self, figures)

    monkeypatch.setattr(RunFolder, "record", recording)
    return epochs


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SeedReport]]:
    """A run that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiments.READERS, "cifar10", lambda folder: (striped(150, 0), striped(60, 1)))
        patch.setattr(runs, "draw_curves", lambda records, path, title: path.write_bytes(b"a picture"))
        return folder, run(TINY, folder)


@pytest.mark.parametrize(
    ("stop_at", "left"),
    [
        (("lambda-2^2", 0), [("lambda-2^2", 0)]),  # the filters are there, but no state yet
        (("lambda-2^10", 2), [("lambda-2^10", 2)]),
        (("final", 1), [("final", 1)]),
    ],
    ids=lambda value: "{}, epoch {}".format(*value) if isinstance(value, tuple) else "",
)
def test_an_interrupted_experiment_goes_on_where_it_stopped(
    tmp_path: Path,
    stop_at: tuple[str, int],
    left: list[tuple[str, int]],
    straight: tuple[Path, list[SeedReport]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, expected = straight
    everything = [
        (path.name, epoch["epoch"])
        for path in (folder / "seed-0" / name for name in ("lambda-2^2", "lambda-2^10", "final"))
        for epoch in metrics(path)
    ]
    with monkeypatch.context() as patch:
        before = recorded_epochs(patch, stop_at)
        with pytest.raises(StoppedError):
            run(TINY, tmp_path / "run")
    after = recorded_epochs(monkeypatch)
    kmeans = Calls(monkeypatch, "fit_unsupervised")
    reports = run(TINY, tmp_path / "run", resume=True)
    assert [*before[:-1], *after] == everything  # none is trained a second time but the one that was not finished
    assert before[-1] == after[0] == left[0]
    names = list(dict.fromkeys(name for name, _ in after))
    assert len(kmeans.arguments) == len(names) - (stop_at[1] > 0)  # filters that are in the state are not learned again
    assert figures(reports) == figures(expected)
    for name in ("lambda-2^2", "lambda-2^10", "final"):
        one, other = folder / "seed-0" / name, tmp_path / "run" / "seed-0" / name
        assert metrics(one) == metrics(other)
        assert same_tensors(one / "model.safetensors", other / "model.safetensors")
        assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for name in ("lambda-2^2", "lambda-2^10"):
        assert same_tensors(folder / f"seed-0/{name}/best.safetensors", tmp_path / f"run/seed-0/{name}/best.safetensors")


def test_a_finished_experiment_has_nothing_left_to_do(
    tmp_path: Path, straight: tuple[Path, list[SeedReport]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(straight[0], tmp_path / "run")
    (tmp_path / "run" / ".report.json.abcd1234.json").write_text("of a process that was killed")
    kmeans, trainings = (Calls(monkeypatch, name) for name in ("fit_unsupervised", "train_supervised"))
    again = run(TINY, tmp_path / "run", resume=True)
    assert figures(again) == figures(straight[1])
    assert again[0].seconds["final training"] == straight[1][0].seconds["final training"]
    assert (kmeans.arguments, trainings.arguments) == ([], [])
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"seed-0", *RUN_FILES}


def test_a_folder_with_a_run_is_not_used_unasked(tmp_path: Path, straight: tuple[Path, list[SeedReport]]) -> None:
    shutil.copytree(straight[0], tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(ValueError, match=r"run already holds a run; give --resume to go on with it, or another folder$"):
        run(TINY, tmp_path / "run")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"patches": 600}, "patches = 500, but patches = 600 was given"),
        ({"recipe": replace(RECIPE, momentum=0.5)}, "recipe.momentum = 0.9, but recipe.momentum = 0.5 was given"),
        ({"lambda_exponents": (2, 9)}, r"lambda_exponents[1] = 10, but lambda_exponents[1] = 9 was given"),
        ({"network": replace(NETWORK, layers=(replace(NETWORK.layers[0], filters=7),))}, "network.layers[0].filters = 6, but"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_settings_do_not_go_on_with_a_run(
    tmp_path: Path, changes: dict[str, Any], sentence: str, straight: tuple[Path, list[SeedReport]]
) -> None:
    shutil.copytree(straight[0], tmp_path / "run")
    with pytest.raises(ValueError, match=re.escape(f"run holds a run with {sentence}")) as caught:
        run(replace(TINY, **changes), tmp_path / "run", resume=True)
    assert "\n" not in str(caught.value)


# -- what cannot work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "processes", "sentence"),
    [
        ({"recipe": None}, 1, "the experiment tiny has no recipe, which training with labels needs"),
        ({"recipe": replace(RECIPE, loss="square")}, 1, 'loss = "square" learns numbers, but the images have classes'),
        ({"recipe": replace(RECIPE, solver="miso")}, 2, 'solver = "miso" works in one process, on the CPU'),
        ({"batch_size": 255}, 2, "batch_size must be a multiple of the number of processes, 2, got 255"),
        ({"validation": 0.001}, 1, "validation = 0.001 leaves no image on one side of 150"),
        ({"network": replace(NETWORK, in_channels=1)}, 1, "the images have 3 channels, but the network's in_channels is 1"),
        ({"network": NetworkConfig(3, (LayerConfig(6, 13, padding=False),))}, 1, "patches of side 13 do not fit"),
    ],
    ids=["no recipe", "square", "miso", "batch_size", "validation", "channels", "size"],
)
def test_what_cannot_work_is_told_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], processes: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        run(replace(TINY, **changes), tmp_path / "run", processes=Processes(0, processes))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_miso_is_a_solver_of_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"solver = \"miso\" works in one process, on the CPU; set solver = \"lbfgs\""):
        run_with_labels(replace(TINY, recipe=replace(RECIPE, solver="miso")), tmp_path, torch.device("cuda"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
