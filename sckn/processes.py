"""Work shared between processes, one for each GPU or machine, through torch.distributed.

Of n samples, process r of c holds those numbered r, r + c, r + 2c, ..., its share. What is summed over samples is summed
over the shares (`sum`), and what has a row for each sample can be put together again (`interleaved`). With one process
all of this does nothing. All processes must make the same calls in the same order, with tensors of the same shape but for
the rows of `interleaved`; no gradient flows through any of them.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["ALONE", "Processes", "joined_processes", "own_device"]

# A process that waits longer for another takes it for lost.
PATIENCE = timedelta(minutes=10)


Object = TypeVar("Object")


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work."""

    rank: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.count:
            raise ValueError(f"process {self.rank} of {self.count} does not exist; the first is 0")

    @property
    def first(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.rank == 0

    @property
    def share(self) -> slice:
        """The samples of this process, as an index."""
        return slice(self.rank, None, self.count)

    def share_sizes(self, total: int) -> list[int]:
        """How many of `total` samples each process holds."""
        return [len(range(rank, total, self.count)) for rank in range(self.count)]

    def sum(self, part: Tensor) -> Tensor:
        """The sum of a tensor over the processes, the same in all of them, to the last bit."""
        if self.count == 1 or not part.numel():
            return part
        total = _copy(part)
        with _reaching_all():
            dist.all_reduce(total)
        return total

    def same(self, value: Tensor) -> Tensor:
        """The value of the first process, in all of them."""
        if self.count == 1 or not value.numel():
            return value
        value = _copy(value)
        with _reaching_all():
            dist.broadcast(value, src=0)
        return value

    def broadcast(self, value: Object) -> Object:
        """Any object of the first process, in all of them."""
        if self.count == 1:
            return value
        box = [value]
        with _reaching_all():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def gathered(self, part: Tensor) -> Tensor:
        """The tensors of all processes, one after the other: (...) -> (count, ...)."""
        if self.count == 1 or not part.numel():
            return part.expand(self.count, *part.shape)
        part = _copy(part)
        parts = [torch.empty_like(part) for _ in range(self.count)]
        with _reaching_all():
            dist.all_gather(parts, part)
        return torch.stack(parts)

    def interleaved(self, rows: Tensor) -> Tensor:
        """Rows of all shares, in the order of the samples: (share, ...) -> (samples, ...)."""
        if self.count == 1:
            return rows
        shapes = self.gathered(torch.tensor(rows.shape, device=rows.device)).tolist()
        lengths = [length for length, *_ in shapes]
        if lengths != self.share_sizes(sum(lengths)):
            raise ValueError(
                f"the {self.count} processes hold {lengths} rows; their shares would be alike but for the last row"
            )
        if any(shape[1:] != shapes[0][1:] for shape in shapes):
            raise ValueError(f"the processes hold rows of different shapes: {shapes}")
        padded = rows.new_zeros(lengths[0], *rows.shape[1:])  # the first share is the longest
        padded[: len(rows)] = rows
        # only the last rows of the later shares can be missing
        return self.gathered(padded).transpose(0, 1).flatten(0, 1)[: sum(lengths)]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            with _reaching_all():
                dist.barrier()


ALONE = Processes()


@contextmanager
def _reaching_all() -> Iterator[None]:
    """What a collective call raises when another process is gone, as one sentence; mistakes of ours stay what they are."""
    try:
        yield
    except RuntimeError as error:
        # the first sentence, without the place in gloo's source
        reason = re.sub(r"^\[\S*\] ", "", str(error)).partition("\n")[0].partition(". ")[0]
        # NCCL and the meeting have types of their own; gloo has none
        if not isinstance(error, dist.DistError) and not re.search("connection|timed out|timeout|broken pipe", reason, re.I):
            raise
        sentence = f"another process of this job ended or cannot be reached ({reason}); start the job again with --resume"
        raise ConnectionError(errno.ECONNABORTED, sentence) from error


def _copy(tensor: Tensor) -> Tensor:
    """For a collective call to write to: contiguous, as it asks for."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _number_of_processes() -> int:
    """As torchrun says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device(device: torch.device) -> torch.device:
    """The device of this process: under torchrun, where "cuda" comes without a number, the GPU with its LOCAL_RANK.

    A number given is kept, for machines that show each process a single GPU, "cuda:0".
    """
    if device.type != "cuda" or device.index is not None or _number_of_processes() == 1:
        return device
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise ValueError(f"process {number} of this machine has no GPU of its own: there are {there}; start as many processes")
    return torch.device("cuda", number)


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun started, joined until the block ends; this process alone, if it did not.

    They work on `own_device(device)`. They can join once: a second meeting would find the addresses of the first.
    """
    if _number_of_processes() == 1:
        yield ALONE
        return
    if not dist.is_available():
        raise RuntimeError(
            f"WORLD_SIZE asks for {_number_of_processes()} processes, but this PyTorch was built without torch.distributed; "
            "install one that has it, or run a single process"
        )
    device = own_device(device)
    with _reaching_all():
        if device.type == "cuda":
            torch.cuda.set_device(device)
            # small tensors on the CPU may be shared, too
            dist.init_process_group(
                "cpu:gloo,cuda:nccl", timeout=PATIENCE, device_id=torch.device("cuda", torch.cuda.current_device())
            )
        else:
            dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
