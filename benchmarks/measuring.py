"""What the benchmarks share: times taken in turns, rows in results/speed.json, tables.

Each benchmark is one command, `python benchmarks/NAME.py`, and ends with a table. All take --device, --tiny (seconds of work,
for tests) and --results (a folder, or None to write nothing). Times of one run compare; those of two may not.
"""

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from sckn.precision import Precision
from sckn.results import code_version, machine, read_result, write_result

__all__ = ["DEVICE", "NAMES", "RESULTS", "Report", "in_turns", "merged", "table"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RESULTS: Path | None = Path("results")
NAME = "speed"
NAMES: dict[Precision, str] = {"highest": "fp32", "high": "TF32", "medium": "bf16"}

Row = dict[str, Any]


def in_turns(works: Mapping[str, Callable[[], object]], device: torch.device, repeats: int, first: int = 1) -> dict[str, float]:
    """The median milliseconds of each piece of work over `repeats`, after `first` runs that do not count.

    They take turns, A, B, A, B, ..., so that whatever else the machine does slows all of them alike. With a single thread the
    time is that of the process, in which what others do hardly shows.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(first + repeats):
        for name, work in works.items():
            time = _milliseconds(work, device)
            if turn >= first:
                times[name].append(time)
    return {name: statistics.median(each) for name, each in times.items()}


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        clock = process_time if torch.get_num_threads() == 1 else perf_counter
        started = clock()
        work()
        return 1000 * (clock() - started)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()  # nothing of the work before is left
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


class Report:
    """The rows of a run: printed as they come, then as a table, and merged into results/speed.json."""

    def __init__(self, script: str, device: str, results: Path | None) -> None:
        self.device, self.results, self.started = torch.device(device), results, perf_counter()
        self.command = " ".join([f"python benchmarks/{Path(script).name}", *sys.argv[1:]])
        self.rows: list[Row] = []

    def add(self, part: str, settings: Row, figures: Row) -> None:
        """A row of a part of the benchmarks; what belongs to the same settings on the same machine takes its place later."""
        rounded = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in figures.items()}
        place = {"device": self.device.type, "threads": torch.get_num_threads()}
        measured = {"code_version": code_version(), "machine": machine(), "command": self.command}
        self.rows.append({"part": part, "settings": {**settings, **place}, "figures": rounded, **measured})
        print(part, *(f"{name}={value}" for name, value in {**settings, **rounded}.items()), flush=True)

    def finish(self) -> None:
        """Write the rows, and print the table."""
        if self.results is not None:
            path = self.results / f"{NAME}.json"
            before = read_result(path)["rows"] if path.exists() else []
            write_result(
                self.results,
                name=NAME,
                dataset="synthetic",
                figures={"rows": merged(before, self.rows)},
                config={"what": "the last command that added rows; each row has its own settings, code version and machine"},
                seeds=[0],
                seconds=perf_counter() - self.started,
                command=self.command,
            )
        for part in dict.fromkeys(row["part"] for row in self.rows):
            print(f"\n{part}\n" + table([{**r["settings"], **r["figures"]} for r in self.rows if r["part"] == part]))


def merged(before: list[Row], new: list[Row]) -> list[Row]:
    """All rows: a new one in the place of one with the same part, settings and machine; sorted by part."""
    rows = {_identity(row): row for row in (*before, *new)}
    return sorted(rows.values(), key=lambda row: row["part"])


def _identity(row: Row) -> str:
    """Part, settings and machine; rows from before all of them told their precision are those of fp32."""
    settings = {"precision": "fp32", **row["settings"]}
    where = {name: row["machine"][name] for name in ("accelerator", "processor", "cores")}
    return json.dumps([row["part"], settings, where], sort_keys=True)


def table(rows: list[Row]) -> str:
    """Columns of equal width, as many as any row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([_shown(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
