"""Reading an experiment's TOML file: what cannot be read, is not known or is missing is named."""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sckn.settings import check_names

__all__ = ["checked_settings", "read_toml"]


def read_toml(path: Path) -> dict[str, Any]:
    """What the file says."""
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); expected an experiment in TOML") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


def checked_settings(path: Path, *, known: Collection[str], required: Collection[str]) -> dict[str, Any]:
    """What the file says, if it has only settings that are known, and all that are required."""
    content = read_toml(path)
    check_names(str(path), content, known, required)
    return content
