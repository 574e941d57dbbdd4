"""Checks of settings: each returns the value in its plain type, or says what was wrong and what was expected."""

import math
import numbers
import operator
import re
from collections.abc import Collection
from typing import Any

__all__ = ["check_names", "file_name", "one_of", "real_number", "true_or_false", "whole_number"]


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """An int of at least `least`; numpy's integers are welcome, 2.0 and True are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return operator.index(value)


def real_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> float:
    """A finite float within the bounds given; numpy's numbers are welcome, "2" and True are not."""
    finite = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not finite or not least <= float(value) <= most or not above < float(value) < below:
        bounds = [f"of at least {least:g}"] * (least > -math.inf) + [f"above {above:g}"] * (above > -math.inf)
        bounds += [f"below {below:g}"] * (below < math.inf) + [f"of at most {most:g}"] * (most < math.inf)
        raise ValueError(f"{name} must be a number{' ' if bounds else ''}{' and '.join(bounds)}, got {value!r}")
    return float(value)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
    return value


def true_or_false(name: str, value: Any) -> bool:
    """A truth value; "false" is not one."""
    if not isinstance(value, bool) and type(value).__name__ != "bool":  # numpy's is called so too
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return bool(value)


def check_names(what: str, given: Collection[str], known: Collection[str], required: Collection[str] = ()) -> None:
    """Refuse a table with names that are not known, or without one that is required."""
    unknown, missing = sorted(set(given) - set(known)), sorted(set(required) - set(given))
    if unknown or missing:
        problem = f"has unknown settings: {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
        raise ValueError(f"{what} {problem}; the settings are {', '.join(sorted(known))}")


def file_name(name: str, value: Any) -> str:
    """A word that can be the name of a file."""
    if not (isinstance(value, str) and re.fullmatch(r"[\w.-]*\w[\w.-]*", value)):
        raise ValueError(f"{name} must consist of letters, digits, '.', '_' and '-', got {value!r}")
    return value
