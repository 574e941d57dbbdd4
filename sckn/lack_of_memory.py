"""Whether an error means that the memory does not suffice."""

import torch

__all__ = ["is_lack_of_memory"]

# PyTorch has an error of its own for that on a GPU alone; its words for processors differ between systems.
WORDS = ("allocate memory", "tried to allocate", "out of memory", "ALLOC_FAILED")


def is_lack_of_memory(error: BaseException) -> bool:
    """Of any error that Python, numpy or PyTorch raises."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)
