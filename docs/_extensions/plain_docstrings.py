"""Docstrings of this project for Sphinx: they are plain sentences, in which |x|, z_j and A* mean what they say.

What stands in backticks stays, indented formulas and examples become blocks, and sections ("Parameters", "Example") get a
heading; each "name: what it is" under Parameters is an entry of a list.
"""

import re
from collections.abc import Iterator

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

PIECES = re.compile(r"(`[^`]+`)")
SPECIAL = re.compile(r"([\\*|_<>`])")
ENTRY = re.compile(r"^(?=\S)((?:\w+(?:, )?)+): (.*)$")


def escaped(text: str) -> str:
    """Plain text for reStructuredText; what is in backticks is a name."""
    return "".join(piece if piece.startswith("`") else SPECIAL.sub(r"\\\1", piece) for piece in PIECES.split(text))


def paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Lines between empty lines."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def converted(lines: list[str]) -> Iterator[str]:
    """A docstring's lines as reStructuredText."""
    section = ""
    for block in paragraphs(lines):
        if len(block) > 1 and set(block[1]) == {"-"}:
            section, block = block[0], block[2:]
            yield from (f"**{section}**", "")
        if not block:
            continue
        if block[0].startswith(">>>"):
            yield from ("::", "", *(f"    {line}" for line in block), "")
        elif all(line.startswith("    ") for line in block):
            yield from ("::", "", *block, "")
        elif section in ("Parameters", "References"):
            yield from entries(block)
        else:
            yield from (escaped(" ".join(line.strip() for line in block)), "")


def entries(block: list[str]) -> Iterator[str]:
    """ "name: what it is", each perhaps over several lines, as a list."""
    joined: list[str] = []
    for line in block:
        if line.startswith(" ") and joined:
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
    for line in joined:
        entry = ENTRY.match(line)
        yield f"- ``{entry[1]}``: {escaped(entry[2])}" if entry else f"- {escaped(line)}"
    yield ""


def convert(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    lines[:] = list(converted(lines))


def skipped(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Methods that scikit-learn adds to its estimators are described there; None leaves the choice to Sphinx."""
    return True if str(getattr(thing, "__module__", "")).startswith("sklearn") else None


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("autodoc-process-docstring", convert)
    app.connect("autodoc-skip-member", skipped)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
