"""Training an upscaler: filters by k-means on detail, then the recipe with the square loss, on patches of photographs.

Some photographs are held out. Patches of them, all of the same weight, judge each epoch, and they themselves, whole and by the
protocol of evaluation, the final model; test sets play no part. Beside the files of any training the run folder has

    RUN/start/         the run of the experiment that this one begins with, if there is one
    RUN/report.json    the figures
    RUN/crops/         details of some of these photographs, side by side, for the report
    RUN/report.html    all of it for people
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from sckn.checkpoint import load_upscaler
from sckn.clock import Clock
from sckn.network import CKN
from sckn.precision import precision
from sckn.superres.bsds500 import read_bsds500
from sckn.superres.evaluation import Quality, cropped_to_multiple, mean_quality, measure_upscaling
from sckn.superres.experiment import UpscalingExperiment, obstacle_to_start
from sckn.superres.imresize import imresize
from sckn.superres.patch_source import PatchSource, every_shift
from sckn.superres.report import write_upscaling_report
from sckn.superres.upscaler import Upscaler
from sckn.training.diagnosis import what_went_wrong
from sckn.training.experiment import peak_memory
from sckn.training.run_files import FIGURES, LAST, read_history, write_json
from sckn.training.runs import RunFolder
from sckn.training.state import EpochRecord
from sckn.training.supervised import train_supervised
from sckn.training.unsupervised import fit_unsupervised
from sckn.training.widening import widen

__all__ = ["UpscalingReport", "as_taught", "held_out", "run_upscaling"]

# Folder, in that of a run, of the training that it begins with.
START = "start"
# Patches of validation are the same whatever the seed of a training, so that trainings can be compared.
VALIDATION_SEED = 0
# The seeds of a training's epochs lie so far apart.
SEEDS = 1_000_003


@dataclass(frozen=True)
class UpscalingReport:
    """A training: the model, the figures of all epochs, PSNR and SSIM on the photographs held out beside bicubic.

    `earlier` are the epochs of the training that it began with. Without photographs held out there is no `validation`.
    `seconds` of each phase, `peak_gib` of an accelerator.
    """

    upscaler: Upscaler
    history: list[EpochRecord]
    earlier: list[EpochRecord]
    photos: int
    validation: Quality | None
    bicubic: Quality | None
    seconds: dict[str, float]
    peak_gib: float | None

    def figures(self) -> dict[str, Any]:
        """What a result file tells besides settings and machine."""
        qualities = {"validation": self.validation, "bicubic": self.bicubic}
        return {
            **{name: None if quality is None else quality.to_dict() for name, quality in qualities.items()},
            "photos": self.photos,
            "last_epoch": self.history[-1],
            "phases": self.seconds,
            "peak_gib": self.peak_gib,
        }


def run_upscaling(
    experiment: UpscalingExperiment,
    folder: Path,
    device: torch.device,
    run: Path,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> UpscalingReport:
    """Train; the run folder then holds the upscaler as model.safetensors, its figures as report.json, and report.html."""
    clock = Clock(device)
    teacher = _teacher(experiment, device)
    RunFolder.has_begun(run, experiment.to_dict(), resume=resume)  # refused before the work, not after it
    first = None
    if experiment.start and not (run / LAST).exists():
        first = _network_to_begin_with(experiment, folder, device, run / START, resume=resume, say=say)
        clock.lap("what it begins with")
    photos = read_bsds500(folder)
    kept, others = held_out(photos, experiment.validation_photos)
    patches_of = partial(
        PatchSource, config=experiment.upscaler, patch=experiment.patch, margin=experiment.margin, device=device
    )
    learned_from = every_shift(kept, experiment.scale) if experiment.every_shift else kept
    if teacher is not None:
        say(f"{experiment.name}: learning from what {experiment.teacher} makes of {len(learned_from)} photographs")
        learned_from = as_taught(learned_from, teacher)
    source = patches_of(learned_from, contrast_power=experiment.contrast_power)
    validation = patches_of(others, units=source.units) if others else None
    clock.lap("photographs")
    store = RunFolder.open(run, experiment.to_dict(), resume=resume, tensorboard=tensorboard)
    with store.left_if_it_learned():
        images, targets = source.draw(experiment.samples, experiment.seed)
        clock.lap("patches")
        torch.manual_seed(experiment.seed)
        network = CKN(experiment.network).to(device)
        if not store.has_state():
            known = f"filters of {_name(experiment.start)}" if experiment.start else "filters by k-means"
            say(f"{experiment.name}: {known}, {len(kept)} photographs")
            _find_first_filters(network, images, experiment, first)
        clock.lap("first filters")
        say(f"{experiment.name}: {experiment.recipe.epochs} epochs with {experiment.samples} patches")
        result = train_supervised(
            network,
            images,
            targets,
            regularization=experiment.regularization,
            recipe=experiment.recipe,
            validation=None if validation is None else validation.draw(experiment.validation_samples, VALIDATION_SEED),
            seed=experiment.seed,
            store=store,
            renew=(lambda epoch: source.draw(experiment.samples, experiment.seed + SEEDS * epoch))
            if experiment.new_patches
            else None,
        )
    # the objective of new patches cannot be compared with that of the first ones; epochs that are undone say so themselves
    if not experiment.new_patches and (warning := what_went_wrong(store.history(), experiment.recipe)):
        say(f"{experiment.name}: {warning}")
    clock.lap("training, this process")
    upscaler = source.upscaler(result.model)
    store.finish(upscaler, result.closing_seconds)
    quality = bicubic = None
    if others:
        quality = _mean_quality(others, experiment.scale, upscaler.upscale_luminance)
        bicubic = _mean_quality(others, experiment.scale, None)
    clock.lap("validation")
    earlier = read_history(run / START)
    report = UpscalingReport(
        upscaler, store.history(), earlier, len(kept), quality, bicubic, clock.seconds, peak_memory(device)
    )
    write_json(run / FIGURES, report.figures())
    write_upscaling_report(run, others, device)
    return report


def held_out(photos: dict[str, Tensor], count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The photographs that are learned from and `count` others, evenly spread over all in the order of their names."""
    if count >= len(photos):
        raise ValueError(
            f"validation_photos = {count} leaves none of {len(photos)} photographs to learn from; set a smaller one"
        )
    chosen = {index * len(photos) // count for index in range(count)}
    parts: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for index, (name, photo) in enumerate(photos.items()):
        parts[index in chosen][name] = photo
    return parts


def as_taught(photos: dict[str, Tensor], teacher: Upscaler, *, progress: bool = True) -> dict[str, Tensor]:
    """What the teacher makes of each photograph (H, W) after it was made smaller, in floating point. Both become the same small
    image.

    Details that nobody can know from that act as noise in the gradients; the teacher's images have none of them.
    """
    scale, device = teacher.scale, teacher.model.weights.device
    bar = tqdm(photos.items(), desc="teaching", unit="photo", disable=None if progress else True)
    small_images = ((name, imresize(cropped_to_multiple(photo.to(device), scale).float(), 1 / scale)) for name, photo in bar)
    return {name: teacher.upscale_luminance(small) for name, small in small_images}


def _network_to_begin_with(
    experiment: UpscalingExperiment,
    folder: Path,
    device: torch.device,
    run: Path,
    *,
    resume: bool,
    say: Callable[[str], None],
) -> CKN:
    """That of the upscaler `start`, whose layers must be those of the experiment, of as many filters or fewer; an experiment
    is trained first."""
    start = experiment.start
    if isinstance(start, UpscalingExperiment):
        return run_upscaling(start, folder, device, run, resume=resume, say=say).upscaler.model.network
    network = _known_upscaler("start", start).model.network
    obstacle = obstacle_to_start(network.config, experiment.network)
    if obstacle is not None:
        raise ValueError(f"start: the network of {start} has {obstacle}")
    return network


def _teacher(experiment: UpscalingExperiment, device: torch.device) -> Upscaler | None:
    if not experiment.teacher:
        return None
    teacher = _known_upscaler("teacher", experiment.teacher, device)
    if teacher.scale != experiment.scale:
        raise ValueError(
            f"teacher: {experiment.teacher} makes photographs {teacher.scale} times larger, this experiment {experiment.scale} "
            "times; give one of the same scale"
        )
    return teacher


def _known_upscaler(setting: str, source: str, device: torch.device | str = "cpu") -> Upscaler:
    try:
        return load_upscaler(source, device)
    except (ValueError, OSError) as error:
        raise ValueError(f"{setting}: {error}") from error


def _name(start: str | UpscalingExperiment) -> str:
    return start.name if isinstance(start, UpscalingExperiment) else start


def _find_first_filters(network: CKN, images: Tensor, experiment: UpscalingExperiment, start: CKN | None) -> None:
    if start is not None:
        widen(network, start.to(images.device), seed=experiment.seed)
        return
    with precision(experiment.recipe.precision, images.device):
        fit_unsupervised(
            network,
            images[: experiment.kmeans_samples],
            patches=experiment.patches,
            iterations=experiment.iterations,
            batch_size=experiment.batch_size,
            seed=experiment.seed,
        )


def _mean_quality(photos: dict[str, Tensor], scale: int, upscale: Callable[[Tensor], Tensor] | None) -> Quality:
    return mean_quality([measure_upscaling(photo, scale, upscale) for photo in photos.values()])
