"""How a command ends when it does not come to its end: one sentence on standard error, and the exit code of a shell."""

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from sckn.lack_of_memory import is_lack_of_memory

__all__ = ["fail", "one_sentence", "resumable"]

STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Terminated(KeyboardInterrupt):
    """The process was told to end (SIGTERM)."""


class _NobodyReadsError(BrokenPipeError):
    """What is printed goes into a pipe that was closed, and there is more to tell than that."""


def fail(sentence: str, code: int = 1) -> NoReturn:
    """End the program."""
    _tell(sentence)
    sys.exit(code)


def _tell(sentence: object) -> None:
    """On standard error, the end of the line in the same write: processes of torchrun, which does not buffer, tell at once, and
    what `print` writes in two parts may be mixed."""
    sys.stderr.write(f"sckn: {sentence}\n")


@contextmanager
def one_sentence() -> Iterator[None]:
    """What goes wrong within, warnings and signals included, is told in one sentence each."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and the like wish
            signal.signal(number, _stop)
    warnings.showwarning = _show_warning
    try:
        yield
        sys.stdout.flush()
    except _Terminated as stop:
        fail("; ".join(["stopped", *stop.args]), 143)
    except KeyboardInterrupt as stop:
        fail("; ".join(["interrupted", *stop.args]), 130)
    except BrokenPipeError as stop:  # whoever reads what is printed has seen enough, `| head` for example
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(stop, _NobodyReadsError):
            _tell(stop)
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, OSError) as error:
        fail(error.strerror if isinstance(error, OSError) and error.strerror else str(error))
    except ImportError as error:  # a package that one of the solvers needs
        fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        fail("the memory does not suffice; set fewer filters, a smaller batch_size or fewer images")


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """An interrupt, told with how to go on."""
    remedy = f"what was finished is in {folder}, go on with --resume"
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)(remedy) from None
    except BrokenPipeError:
        raise _NobodyReadsError(f"stopped, for nobody reads what is printed; {remedy}") from None


def _stop(number: int, _: object) -> None:
    """The first signal lets the program end in order, a second one ends it at once."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_DFL)
    raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """One sentence, as for errors, instead of a line of source code."""
    _tell(message)
