"""Settings of Sphinx, which makes the pages: `make docs`."""

import sys
from pathlib import Path

from sckn import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "sckn"
author = "The sckn developers"
copyright = author  # noqa: A001  (the name is Sphinx's)
version = release = __version__

extensions = ["sphinx.ext.autodoc", "myst_parser", "mathml", "plain_docstrings"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
exclude_patterns = ["_build"]

# Names in backticks are links where there is something to link to; tests/test_docs.py sees to those that must be.
default_role = "py:obj"

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True

html_theme = "alabaster"
html_theme_options = {
    "description": "Convolutional kernel networks on PyTorch",
    "fixed_sidebar": True,
    "page_width": "1240px",
    "show_powered_by": False,
}
html_show_sourcelink = False
