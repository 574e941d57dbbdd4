"""`sckn tables`."""

from pathlib import Path
from typing import Annotated

import tyro

from sckn.tables import TABLES, TableFormat, render_table

__all__ = ["tables"]


def tables(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TABLE...]", help_behavior_hint="")] = (),
    format: TableFormat = "text",  # noqa: A002  (the name of the option)
    results: Path = Path("results"),
) -> None:
    """Print the tables of the paper with our results beside them.

    Example: sckn tables --format markdown

    Args:
        names: classification, superres-psnr, superres-ssim; else all.
        format: LaTeX needs the package booktabs.
        results: Folder with the results; one that is not there is a dash.
    """
    known = {table.key: table for table in TABLES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no table {unknown[0]!r}; there is {', '.join(known)}")
    print("\n\n".join(render_table(known[name], results, format) for name in names or known))
