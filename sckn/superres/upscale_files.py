"""Photographs in files made larger; one that cannot be read does not hold up the others, and none is overwritten."""

import glob
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from sckn.image_files import SUFFIXES
from sckn.lack_of_memory import is_lack_of_memory
from sckn.superres.photos import WRITTEN, checked_suffix, naming, photo_files, read_photo, write_photo
from sckn.superres.picture import noting_what_is_left_out
from sckn.superres.upscaler import Upscaler

__all__ = ["Job", "Outcome", "lack_of_memory_told", "plan", "upscale_file", "upscale_files"]

WRITTEN_INSTEAD = ".png"  # for formats that are read only
# Of the largest image on the way: what a computer can be expected to hold, at some 8 bytes a pixel.
MOST_PIXELS = 2**30
LONGEST_SIDE = {".jpg": 65500, ".jpeg": 65500, ".webp": 16383}  # that the format can hold


@dataclass(frozen=True)
class Job:
    """A photograph and where its large form goes; or the problem that there is with what was given."""

    source: str
    target: Path = Path()
    problem: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What was written, with its width and height; or the problem, as a sentence. `notes` tell what is not in the result."""

    source: str
    target: Path
    size: tuple[int, int] | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()


def plan(sources: Sequence[str], output: str) -> list[Job]:
    """Find the photographs that files, folders and patterns such as *.jpg stand for, and a place for each.

    `output` is a file for a single photograph, else a folder. To overwrite a photograph
    that is to be read, or to write two to one file, is refused; files of earlier runs are replaced.
    """
    if not sources:
        raise ValueError("there are no photographs to make larger; give files or folders")
    found: dict[str, Job] = {}
    for source in sources:
        for job in _jobs(source):
            found.setdefault(os.path.realpath(job.source), job)
    photos = [job for job in found.values() if job.problem is None]
    single = len(sources) == len(found) == 1 and not os.path.isdir(sources[0])
    in_folder = _is_folder(output, single, len(photos))
    targets = {job.source: Path(output, _written_name(job.source)) if in_folder else Path(output) for job in photos}
    _refuse_overwriting(targets)
    return [job if job.problem else Job(job.source, targets[job.source]) for job in found.values()]


def upscale_files(
    upscaler: Upscaler,
    jobs: Sequence[Job],
    factor: float | None = None,
    *,
    memory_gib: float = 0.5,
    tile: int | None = None,
    progress: bool = True,
) -> Iterator[Outcome]:
    """Do one after the other; only mistakes in the settings end it early."""
    upscaler.check_settings(factor, memory_gib, tile)
    several = len(jobs) > 1
    bar = tqdm(jobs, desc="upscaling", unit="photo", disable=None if progress and several else True)
    for job in bar:
        if job.problem is not None:
            yield Outcome(job.source, job.target, problem=job.problem)
            continue
        with noting_what_is_left_out() as left_out:
            size = problem = None
            try:
                size = upscale_file(
                    upscaler,
                    job.source,
                    job.target,
                    factor,
                    memory_gib=memory_gib,
                    tile=tile,
                    progress=progress and not several,
                )
            except (ValueError, OSError) as error:
                problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        notes = tuple(f"{job.source}: {note}" for note in left_out) if size else ()
        yield Outcome(job.source, job.target, size, problem, notes)


def upscale_file(
    upscaler: Upscaler,
    source: str | Path,
    target: str | Path,
    factor: float | None = None,
    *,
    memory_gib: float = 0.5,
    tile: int | None = None,
    progress: bool = True,
) -> tuple[int, int]:
    """Make the photograph in one file larger; gives width and height of what is then in the other."""
    with naming(source):
        image = read_photo(source)
        _check_size(image.size, upscaler, upscaler.scale if factor is None else factor, Path(target).suffix.lower())
        with lack_of_memory_told():
            large = upscaler.upscale(image, factor, memory_gib=memory_gib, tile=tile, progress=progress)
        write_photo(large, target)
    return large.size


@contextmanager
def lack_of_memory_told() -> Iterator[None]:
    """In one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        raise ValueError("the memory does not suffice; choose a smaller scale, tile or memory") from None


def _jobs(source: str) -> Iterator[Job]:
    if os.path.isdir(source):
        try:
            files = photo_files(source)
        except (ValueError, OSError) as error:
            yield Job(source, problem=str(error))
            return
    elif os.path.exists(source):
        files = [Path(source)]
    elif not glob.has_magic(source):
        yield Job(source, problem=f"{source} does not exist; expected an image")
        return
    else:  # where no shell has done it
        files = sorted(Path(name) for name in glob.glob(source, recursive=True) if Path(name).suffix.lower() in SUFFIXES)
        if not files:
            yield Job(source, problem=f"there is no image {source}")
    yield from (Job(str(file)) for file in files)


def _is_folder(output: str, single: bool, count: int) -> bool:
    """A name without an ending is that of a folder; one with it is that of a file, if there is one photograph."""
    if os.path.isdir(output) or output.endswith(("/", os.sep)):
        return True
    suffix = Path(output).suffix.lower()
    if single and suffix:
        checked_suffix(Path(output))
        return False
    if suffix in SUFFIXES or os.path.exists(output):
        what = "one photograph" if count == 1 else f"{count} photographs"
        raise ValueError(f"{output} is a file, but a folder is needed for {what}; give one with -o")
    return True


def _written_name(source: str) -> str:
    path = Path(source)
    return path.name if path.suffix.lower() in WRITTEN else path.stem + WRITTEN_INSTEAD


def _refuse_overwriting(targets: dict[str, Path]) -> None:
    twice = [target for target, count in Counter(targets.values()).items() if count > 1]
    if twice:
        one, other = [source for source, target in targets.items() if target == twice[0]][:2]
        raise ValueError(f"{one} and {other} would both become {twice[0]}; do one of them apart, into another folder")
    sources = {_identity(source) for source in targets}
    for target in targets.values():
        if os.path.exists(target) and _identity(target) in sources:
            raise ValueError(f"{target} is a photograph to be read and would be overwritten; choose another place with -o")


def _identity(path: str | Path) -> tuple[int, int]:
    """The same for all names of a file."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _check_size(size: tuple[int, int], upscaler: Upscaler, factor: float, suffix: str) -> None:
    """Before the work."""
    width, height = (round(side * factor) for side in size)
    on_the_way = upscaler.scale ** (2 * upscaler.passes(factor)) * math.prod(size)
    if on_the_way > MOST_PIXELS:
        raise ValueError(f"{size[0]} x {size[1]} pixels are too many for a scale of {factor:g}; choose a smaller one")
    longest = LONGEST_SIDE.get(suffix)
    if longest is not None and max(width, height) > longest:
        raise ValueError(f"{suffix} files hold no {width} x {height} pixels; choose .png")
