"""The site of `make docs`: the repository is its source, so that a link that works in the repository works in the site, too."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

project = "monarch_nb"
author = "the monarch_nb team"
copyright = f"2026, {author}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton"]

root_doc = "README"
include_patterns = ["*.md", "notebooks/*.ipynb", "notebooks/pages/*.md", "notebooks/pages/reference/*.rst", "monarch_nb/**/*.md"]
exclude_patterns = [".venv", "build", "**/node_modules", "**/site-packages"]

html_theme = "furo"
html_title = "monarch_nb"
html_show_sphinx = False
templates_path: list[str] = []

# Tutorials are shown with the outputs that `make notebooks` compares; a page isn't the place to run them.
nb_execution_mode = "off"
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 10), ("html", "text/plain", 20)]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
default_role = "code"

_TOCTREE = """

```{toctree}
:hidden:
:caption: Guide
:glob:

notebooks/pages/guide
```
"""


def setup(app: Any) -> None:
    """Called by Sphinx."""
