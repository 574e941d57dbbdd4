"""The paper's tables with our results beside them, as text, Markdown or LaTeX."""

import math
import numbers
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from sckn.published import CLASSIFICATION, SUPERRES_PSNR, SUPERRES_SSIM, Measured, Table
from sckn.results import read_result

__all__ = ["TABLES", "TableFormat", "render_table"]

TableFormat = Literal["text", "markdown", "latex"]
TABLES = (CLASSIFICATION, SUPERRES_PSNR, SUPERRES_SSIM)  # a further table needs only its entry here

MISSING = "-"
Cells = list[list[str]]  # the rows of a group, the method first


def render_table(table: Table, results: Path, form: TableFormat = "text", *, empty_rows: bool = True) -> str:
    """The table; a result that is not in the folder `results` is a dash, and a row may have nothing else or be left out."""
    if not Path(results).is_dir():
        raise ValueError(f"{results} is no folder; give the folder with the results, results/ of the repository")
    groups = [
        [[row.method, *(_shown(figure, table.decimals, Path(results)) for figure in row.figures)] for row in rows]
        for rows in table.groups
    ]
    if not empty_rows:
        groups = [[row for row in rows if set(row[1:]) != {MISSING}] for rows in groups]
        groups = [rows for rows in groups if rows]
    return FORMATS[form](table, groups)


def _shown(figure: str | Measured | None, decimals: int, results: Path) -> str:
    if not isinstance(figure, Measured):
        return figure or MISSING
    path = results / f"{figure.result}.json"
    if not path.is_file():
        return MISSING
    content = read_result(path)
    first, *below = figure.field.split(".")
    if below and first not in content:  # trained, but not measured on the test sets
        return MISSING
    value, deviation = _at_path(content, [first, *below]), content.get(figure.deviation)
    if not _is_number(value):
        raise ValueError(f"{path} has no number {figure.field!r}; expected a result of sckn train")
    return f"{value:.{decimals}f}" + (f" ± {deviation:.{decimals}f}" if _is_number(deviation) else "")


def _at_path(content: Any, path: Sequence[str]) -> Any:
    """What lies in tables within tables, or nothing."""
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _text(table: Table, groups: Sequence[Cells]) -> str:
    rows = [["", *table.columns], *(row for group in groups for row in group)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: list[str]) -> str:
        sides = ["<", *(">" for _ in table.columns)]
        return "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))

    rule = "-" * (sum(widths) + 2 * len(table.columns))
    parts = [table.title, "", line(rows[0])]
    for group in groups:
        parts += [rule, *map(line, group)]
    return "\n".join([*parts, rule, *table.notes])


def _markdown(table: Table, groups: Sequence[Cells]) -> str:
    rows = [["", *table.columns], ["---", *("---:" for _ in table.columns)], *(row for group in groups for row in group)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([f"**{table.title}**", "", *lines, "", " ".join(table.notes)])


def _latex(table: Table, groups: Sequence[Cells]) -> str:
    """For the package booktabs."""

    def line(row: Sequence[str]) -> str:
        return "  " + " & ".join(_for_latex(cell) for cell in row) + r" \\"

    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{_for_latex(' '.join([table.title + '.', *table.notes]))}}}"]
    lines += [rf"  \begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"  \toprule", line(["", *table.columns])]
    for group in groups:
        lines += [r"  \midrule", *map(line, group)]
    return "\n".join([*lines, r"  \bottomrule", r"  \end{tabular}", r"\end{table}"])


def _for_latex(text: str) -> str:
    if text == MISSING:
        return "--"
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    return text.replace(" ± ", r" $\pm$ ").replace("±", r"$\pm$")


FORMATS: dict[TableFormat, Callable[[Table, Sequence[Cells]], str]] = {"text": _text, "markdown": _markdown, "latex": _latex}
