"""Committed results: one JSON file a figure, with all that is needed to get it again."""

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from sckn.files import written_whole
from sckn.version import __version__

__all__ = ["add_to_result", "code_version", "machine", "read_result", "write_result"]


def code_version() -> str:
    """The version and a digest of the package's sources: it names the code also where there is no repository."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}, sources sha256:{digest.hexdigest()[:16]}"


def machine() -> dict[str, Any]:
    """What the figure was measured on."""
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "accelerator": accelerator,
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_result(
    folder: Path,
    *,
    name: str,
    dataset: str,
    figures: dict[str, Any],
    config: dict[str, Any],
    seeds: list[int],
    seconds: float,
    command: str,
    measured_by: str | None = None,
    measured_on: dict[str, Any] | None = None,
) -> Path:
    """Write `folder`/`name`.json: the figures beside config, seeds, code version, machine, seconds and command.

    Code version and machine are those of this process, unless the figures were measured before, by other code or elsewhere.
    """
    fixed = {
        "name": name,
        "dataset": dataset,
        "config": config,
        "seeds": seeds,
        "code_version": measured_by or code_version(),
        "machine": measured_on or machine(),
        "seconds": round(seconds, 2),
        "command": command,
    }
    taken = sorted(set(fixed) & set(figures))
    if taken:
        raise ValueError(f"a figure cannot be called {taken[0]!r}: every result has a field of that name")
    path = Path(folder) / f"{name}.json"
    content = json.dumps({"name": name, "dataset": dataset, **figures, **fixed}, indent=2, allow_nan=False)
    with written_whole(path) as temporary:
        temporary.write_text(content + "\n")
    return path


def read_result(path: Path) -> dict[str, Any]:
    """What `write_result` wrote."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read ({reason}); expected a result of sckn train") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a result of sckn train: it is no table")
    return content


def add_to_result(path: Path, figures: dict[str, Any]) -> Path:
    """Write further figures into a result, in the place of former ones of these names; what `write_result` fixed stays."""
    text = json.dumps({**read_result(path), **figures}, indent=2, allow_nan=False)
    with written_whole(path) as temporary:
        temporary.write_text(text + "\n")
    return path
