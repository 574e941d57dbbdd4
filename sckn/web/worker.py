"""A process that does one task after the other, and can be killed in the midst of one.

Killing is the only way in which work is stopped, whatever the reason: the visitor went away, the time is over, the server
stops. A process that was killed, or died by itself, is replaced when there is a next task. A fork server that has imported
everything makes that quick.
"""

import multiprocessing
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tqdm import tqdm

from sckn.web.limits import RefusalError
from sckn.web.tasks import use_threads

__all__ = ["Worker", "WorkerError", "WorkerLostError"]

Report = Callable[[int, int], None]
LONGEST_FOLDER = 64  # characters


class WorkerError(RuntimeError):
    """A task raised what it should not; the text is that of the process's traceback."""


class WorkerLostError(RuntimeError):
    """The process was killed, or died, before its task was done."""


class Worker:
    """Tasks are functions of modules, called in the process with plain arguments."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._process: Any = None
        self._connection: Any = None
        self._one_at_a_time = threading.Lock()

    def run(self, task: Callable[..., Any], arguments: dict[str, Any], report: Report | None, stop: threading.Event) -> Any:
        """Blocks until the task is done. With `report` the task is given a function of that name, which calls it here."""
        with self._one_at_a_time:
            connection = self._started()
            try:
                # `kill` sets this first and looks for the process then: one of the two sees the other
                if stop.is_set():
                    raise EOFError
                connection.send((task, arguments, report is not None))
                while True:
                    kind, content = connection.recv()
                    if kind == "report" and report is not None:
                        report(*content)
                    elif kind == "answer":
                        return content
                    elif kind == "refusal":
                        raise content
                    elif kind == "error":
                        raise WorkerError(content)
            except (EOFError, OSError):
                self._bury()
                raise WorkerLostError("the process that did the work ended before its time") from None

    def kill(self, stop: threading.Event) -> None:
        """End the run that was given this `stop`, from another thread."""
        stop.set()
        process = self._process
        if process is not None:
            with suppress(ValueError):  # it is buried already
                process.kill()

    def close(self) -> None:
        """End the process, between two runs."""
        with self._one_at_a_time:
            self._bury()

    def _started(self) -> Connection:
        if self._process is not None and not self._process.is_alive():
            self._bury()
        if self._connection is None:
            context = _context()
            connection, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._threads), daemon=True)
            process.start()
            theirs.close()
            self._process, self._connection = process, connection
        return self._connection

    def _bury(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        self._process = self._connection = None


def _context() -> Any:
    # the fork server has a socket in the folder for temporary files, and names of sockets are short
    crowded = len(tempfile.gettempdir()) > LONGEST_FOLDER
    if crowded or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__, "sckn.web.warm"])
    return context


def _work(connection: Connection, threads: int) -> None:
    """The life of the process; it ends with the server's, whose end of the connection is then closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then kills
    use_threads(threads)
    tqdm.set_lock(threading.RLock())  # its own one would be a semaphore, which a killed process leaves behind

    def report(done: int, total: int) -> None:
        connection.send(("report", (done, total)))

    try:
        while True:
            task, arguments, reporting = connection.recv()
            try:
                reply = ("answer", task(**arguments, **({"report": report} if reporting else {})))
            except (EOFError, BrokenPipeError):
                raise
            except RefusalError as refusal:
                reply = ("refusal", refusal)
            except ValueError as problem:
                reply = ("refusal", RefusalError(422, str(problem)))
            except Exception:
                reply = ("error", traceback.format_exc())
            connection.send(reply)
    except (EOFError, OSError):
        return
