"""The peak memory of a process of its own (Linux)."""

import runpy
import subprocess
import sys
from pathlib import Path

__all__ = ["peak_of_process"]


def peak_of_process(*arguments: str) -> tuple[float, str]:
    """Peak memory in MiB of `python ARGUMENTS`, and what it printed."""
    run = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(f"python {' '.join(arguments)} failed:\n{run.stderr}")
    return float(run.stderr.split()[-1]), run.stdout


def _run_and_tell_peak(arguments: list[str]) -> None:
    """In that process, as the last word on standard error: what a parent is told would include what it held itself."""
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        status = Path("/proc/self/status").read_text()
        print(int(status.split("VmHWM:")[1].split()[0]) / 1024, file=sys.stderr)


if __name__ == "__main__":
    _run_and_tell_peak(sys.argv[1:])
