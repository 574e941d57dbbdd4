"""Write the tables of README.md anew, from the files of results/.

    python experiments/readme_tables.py

A table stands between a line that names it as `sckn tables` does and a line that ends it; rows without a figure are left out.
"""

import re
from pathlib import Path

from sckn.files import written_whole
from sckn.tables import TABLES, render_table

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- tables: ([\w -]+?) -->\n).*?(<!-- end of tables -->)", re.DOTALL)


def with_tables(text: str, results: Path) -> str:
    """The text with all its tables as the results are now."""
    known = {table.key: table for table in TABLES}

    def renewed(place: re.Match[str]) -> str:
        tables = [render_table(known[key], results, "markdown", empty_rows=False) for key in place[2].split()]
        return place[1] + "\n\n".join(tables) + "\n" + place[3]

    return MARKED.sub(renewed, text)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    text = with_tables(readme.read_text(encoding="utf-8"), ROOT / "results")
    with written_whole(readme) as temporary:
        temporary.write_text(text, encoding="utf-8")
