"""An experiment with a recipe: lambda and the number of epochs are chosen on a part of the training set held out, with the
first seed; then, with each seed, the network is trained on all of it, and the test set is looked at once.

Each training has a folder of its own inside the run folder, so that an interrupted experiment goes on with the lambda,
and in it the epoch, where it stopped:

    RUN/seed-0/lambda-2^-1/  one for each lambda tried, of the first seed
    RUN/seed-0/final/        on all training images; beside the files of any training
        classifier.safetensors   the result: the model with its classes and how images are prepared for it
        evaluation.json          what it gets right and wrong on the test set
        strongest-patches/       pictures for the report, of the first seed
    RUN/report.json          the figures of all seeds
    RUN/report.html          all of it for people
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sckn import checkpoint
from sckn.classifier import ImageClassifier
from sckn.clock import Clock
from sckn.data.labelled import LabelledImages
from sckn.evaluation import Evaluation, confusion_matrix
from sckn.files import remove_leftovers
from sckn.linear import best_exponent
from sckn.model import KernelModel
from sckn.network import CKN
from sckn.precision import precision
from sckn.processes import ALONE, Processes
from sckn.training.diagnosis import what_went_wrong
from sckn.training.experiment import Experiment, SeedReport, class_names, peak_memory, prepared_images, read_data
from sckn.training.recipe import Recipe
from sckn.training.report import write_report
from sckn.training.run_files import CLASSIFIER, EVALUATION, FIGURES, write_json
from sckn.training.runs import RunFolder
from sckn.training.state import EpochRecord
from sckn.training.supervised import TrainingResult, train_supervised
from sckn.training.unsupervised import fit_unsupervised

__all__ = ["Choice", "run_with_labels"]

NOTHING_GAINED = (
    "the filters are those of k-means, for no epoch had fewer errors on the images held out; "
    "lower learning_rate in the recipe, or hold out more images"
)


@dataclass(frozen=True)
class Choice:
    """What one training with a held-out part showed: the least validation error, after how many epochs, in what time."""

    exponent: int
    validation_error: float
    epochs: int
    seconds: float


def run_with_labels(
    experiment: Experiment,
    folder: Path,
    device: torch.device,
    run: Path,
    *,
    resume: bool = False,
    test: bool = True,
    tensorboard: bool = False,
    processes: Processes = ALONE,
    say: Callable[[str], None] = lambda sentence: None,
) -> list[SeedReport]:
    """Run every seed. With `test` False only the validation errors are found, of every seed."""
    if experiment.recipe is None:
        raise ValueError(f"the experiment {experiment.name} has no recipe, which training with labels needs")
    if processes.first:  # the others would find what it makes
        RunFolder.has_begun(Path(run), experiment.to_dict(), resume=resume)  # refused before the work, not after it
    train, held_out = read_data(experiment, folder)
    _refuse_what_cannot_work(experiment, experiment.recipe, train, device, processes)
    root = RunFolder.open(run, experiment.to_dict(), resume=resume) if processes.first else None
    processes.wait()  # if the folder cannot be used, the others learn it from the first process, which ends
    runner = _Runner(experiment, experiment.recipe, train, device, Path(run), tensorboard, processes, say)
    reports: list[SeedReport] = []
    with nullcontext() if root is None else root.left_if_it_learned():
        for seed in experiment.seeds:
            _forget_the_last(device)
            first = reports[0] if reports else None
            reports.append(runner.run_seed(seed, held_out, first) if test else runner.judge_seed(seed))
    if root is not None:
        write_json(Path(run) / FIGURES, [asdict(report) for report in reports])
        write_report(Path(run), train, device)
    return reports


def _forget_the_last(device: torch.device) -> None:
    """What the training of another seed left in memory, in cycles of references, and its peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _refuse_what_cannot_work(
    experiment: Experiment, recipe: Recipe, train: LabelledImages, device: torch.device, processes: Processes
) -> None:
    """Before anything is written: a run folder keeps the settings it was made with."""
    experiment.network.output_size(*train.images.shape[2:])  # refuses images that are too small
    if not recipe.classifies:
        raise ValueError(f'loss = "{recipe.loss}" learns numbers, but the images have classes; set another loss in the recipe')
    if recipe.solver == "miso" and (processes.count > 1 or device.type != "cpu"):
        raise ValueError('solver = "miso" works in one process, on the CPU; set solver = "lbfgs" in the recipe')
    if experiment.batch_size % processes.count:
        raise ValueError(
            f"batch_size must be a multiple of the number of processes, {processes.count}, got {experiment.batch_size}"
        )


@dataclass(frozen=True)
class _Runner:
    experiment: Experiment
    recipe: Recipe
    train: LabelledImages
    device: torch.device
    run: Path
    tensorboard: bool
    processes: Processes
    say: Callable[[str], None]

    def judge_seed(self, seed: int) -> SeedReport:
        """The validation error of each lambda."""
        choices = self._choices(seed, *self._images_of_seed(seed), always=True)
        best, seconds = _best(choices), {"choice of lambda": _total(choices)}
        memory = peak_memory(self.device)
        return SeedReport(seed, None, None, _errors(choices), best.exponent, None, seconds, memory, best.epochs)

    def run_seed(self, seed: int, test: LabelledImages, first: SeedReport | None) -> SeedReport:
        """Training on all images, and the test; with lambda and epochs of the first seed, or, for that one, chosen here."""
        clock = Clock(self.device)
        images, labels = self._images_of_seed(seed)
        clock.lap("preparation")
        choices = [] if first is not None else self._choices(seed, images, labels, always=False)
        # as the epochs took them, also those before an interruption
        seconds = {"preparation": clock.seconds["preparation"], "choice of lambda": _total(choices)}
        if first is not None:
            best, epochs = first.lambda_exponent, self.recipe.epochs if first.epochs is None else first.epochs
        elif choices:
            best, epochs = _best(choices).exponent, _best(choices).epochs
        else:
            best, epochs = self.experiment.lambda_exponents[0], self.recipe.epochs
        self.say(f"seed {seed}: final training with lambda = 2^{best}/n, {epochs} epochs")
        recipe = replace(self.recipe, epochs=epochs)
        place = self.run / f"seed-{seed}" / "final"
        store = self._store(place, seed, recipe, best, len(self.train.labels))
        finished = self._finished(store)
        if finished:
            model = self.processes.broadcast(None if store is None else store.final_model())
            assert model is not None
            result = TrainingResult(model.to(self.device), self._history(store))
        else:
            result = self._training(store, seed, recipe, best, (images, labels), None, len(self.train.labels))
        seconds["final training"] = _seconds(result.history)
        clock = Clock(self.device)
        train_error = self._error(result.model, images, labels, len(self.train.labels))
        evaluation = self._evaluation(result.model, test)
        test_error = evaluation.error
        clock.lap("test")
        if self.processes.first:
            figures = {"test_error": test_error, "test_images": evaluation.images, "train_error": train_error, "seed": seed}
            self._keep(place, result.model, {**figures, "lambda_exponent": best, "epochs": epochs}, evaluation)
        last = next(record for record in reversed(result.history) if record["accepted"])
        gradient, seconds["test"] = last["solver_gradient"], clock.seconds["test"]
        memory = None if finished else peak_memory(self.device)  # that of the training
        return SeedReport(seed, test_error, train_error, _errors(choices), best, gradient, seconds, memory, epochs)

    def _images_of_seed(self, seed: int) -> tuple[Tensor, Tensor]:
        """All training images and their labels, in an order of this seed, of which the last are held out."""
        order = torch.randperm(len(self.train.labels), generator=torch.Generator().manual_seed(seed)).numpy()
        return self._share(self.train, order)

    def _error(self, model: KernelModel, images: Tensor, labels: Tensor, count: int) -> float:
        """Percent of the `count` images of all processes that the model gets wrong."""
        wrong = (model.predict(images).argmax(1) != labels).double().sum()
        return 100 * float(self.processes.sum(wrong)) / count

    def _evaluation(self, model: KernelModel, test: LabelledImages) -> Evaluation:
        """On the test set, of which every process does its share. It may have classes that nothing was learned of."""
        images, labels = self._share(test, np.arange(len(test.labels)))
        classes = max(model.weights.shape[1], int(test.labels.max()) + 1)
        own = confusion_matrix(labels.cpu().numpy(), model.predict(images).argmax(1).cpu().numpy(), classes)
        total = self.processes.sum(torch.from_numpy(own).to(self.device)).cpu().numpy()
        return Evaluation(class_names(self.train, classes), total)

    def _keep(self, place: Path, model: KernelModel, figures: dict[str, Any], evaluation: Evaluation) -> None:
        """The result of a seed, for use and for reading."""
        classifier = ImageClassifier(
            model,
            class_names(self.train, model.weights.shape[1]),
            self.train.images.shape[2],
            preparation=self.experiment.preparation,
            name=self.experiment.name,
            experiment=self.experiment.to_dict(),
            figures=figures,
        )
        remove_leftovers(place / CLASSIFIER)
        checkpoint.save(classifier, place / CLASSIFIER)
        write_json(place / EVALUATION, evaluation.to_dict(), indent=None)

    def _share(self, data: LabelledImages, order: np.ndarray) -> tuple[Tensor, Tensor]:
        """The images of this process, prepared, and their labels, in this order."""
        own = order[self.processes.share]
        images = prepared_images(self.experiment, data.images[own], self.device)
        return images, torch.from_numpy(data.labels[own]).to(self.device)

    def _choices(self, seed: int, images: Tensor, labels: Tensor, *, always: bool) -> list[Choice]:
        """One training for each lambda, unless there is nothing to choose."""
        experiment, recipe = self.experiment, self.recipe
        lasts = recipe.schedule in ("cosine", "linear")  # the rate falls over all epochs: to stop early makes no sense
        if not always and lasts and len(experiment.lambda_exponents) == 1:
            return []
        count = len(self.train.labels)
        kept = experiment.kept(count)
        own = self.processes.share_sizes(kept)[self.processes.rank]
        part, held_out = (images[:own], labels[:own]), (images[own:], labels[own:])
        shorter = replace(recipe, epochs=experiment.selection_epochs or recipe.epochs)
        choices = []
        for exponent in experiment.lambda_exponents:
            self.say(f"seed {seed}: lambda = 2^{exponent}/n, {shorter.epochs} epochs, {kept} of {count} images")
            place = self.run / f"seed-{seed}" / f"lambda-2^{exponent}"
            store = self._store(place, seed, shorter, exponent, kept)
            if not self._finished(store):
                self._training(store, seed, shorter, exponent, part, held_out, kept)
            history = self._history(store)
            errors = {record["epoch"]: record["validation_error"] for record in history if record["accepted"]}
            epoch = max(errors) if lasts else min(errors, key=lambda epoch: (errors[epoch], epoch))
            epochs = recipe.epochs if lasts or experiment.selection_epochs else epoch
            choices.append(Choice(exponent, errors[epoch], epochs, _seconds(history)))
        best = _best(choices)
        if best.epochs == 0 < recipe.epochs and best.validation_error:  # with none wrong there was nothing to gain
            self.say(f"seed {seed}: {NOTHING_GAINED}")
        return choices

    def _store(self, place: Path, seed: int, recipe: Recipe, exponent: int, count: int) -> RunFolder | None:
        """Where a training is kept, by the first process alone."""
        settings: dict[str, Any] = {**recipe.to_dict(), "seed": seed, "lambda_exponent": exponent, "images": count}
        return RunFolder.open(place, settings, resume=True, tensorboard=self.tensorboard) if self.processes.first else None

    def _finished(self, store: RunFolder | None) -> bool:
        """Whether there is nothing left to train."""
        finished = self.processes.broadcast(store is not None and store.finished())
        if finished and store is not None:
            store.draw_curves(missing=True)  # a process that was killed after it had kept the model has left none
        return finished

    def _history(self, store: RunFolder | None) -> list[EpochRecord]:
        return self.processes.broadcast([] if store is None else store.history())

    def _training(
        self,
        store: RunFolder | None,
        seed: int,
        recipe: Recipe,
        exponent: int,
        train: tuple[Tensor, Tensor],
        validation: tuple[Tensor, Tensor] | None,
        count: int,
    ) -> TrainingResult:
        """Filters by k-means, then the recipe; from where it stopped, if it was interrupted."""
        torch.manual_seed(seed)
        network = CKN(self.experiment.network).to(self.device)
        begun = self.processes.broadcast(store is not None and store.has_state())
        if not begun:
            clock = Clock(self.device)
            with precision(recipe.precision, self.device):
                self._fit_unsupervised(network, train[0], seed)
            clock.lap("k-means")
            if store is not None:
                store.add_seconds("k-means", clock.seconds["k-means"])
        result = train_supervised(
            network,
            *train,
            regularization=2.0**exponent / count,
            recipe=recipe,
            validation=validation,
            seed=seed,
            store=store,
            processes=self.processes,
        )
        if store is not None:
            store.finish(result.model, result.closing_seconds)
        history = self._history(store)
        if warning := what_went_wrong(history, recipe):
            self.say(f"seed {seed}: {warning}")
        return replace(result, history=history)

    def _fit_unsupervised(self, network: CKN, images: Tensor, seed: int) -> None:
        experiment = self.experiment
        if experiment.kmeans_images is not None:
            images = images[: self.processes.share_sizes(experiment.kmeans_images)[self.processes.rank]]
        fit_unsupervised(
            network,
            images,
            patches=experiment.patches,
            iterations=experiment.iterations,
            batch_size=experiment.batch_size,
            seed=seed,
            processes=self.processes,
        )


def _errors(choices: list[Choice]) -> dict[int, float]:
    return {choice.exponent: choice.validation_error for choice in choices}


def _best(choices: list[Choice]) -> Choice:
    best = best_exponent(_errors(choices))
    return next(choice for choice in choices if choice.exponent == best)


def _total(choices: list[Choice]) -> float:
    return sum(choice.seconds for choice in choices)


def _seconds(history: list[EpochRecord]) -> float:
    return round(sum(sum(record["seconds"].values()) for record in history), 2)
