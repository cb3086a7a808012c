"""The site of `make docs`. Its source is the whole repository, so that a link that works in the repository
works in the site, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]

project = "monarch_nb"
author = "the monarch_nb team"
project_copyright = f"2026, {author}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

root_doc = "README"
include_patterns = [
    "*.md",
    "notebooks/*.ipynb",
    "notebooks/pages/*.md",
    "notebooks/pages/coming_from/*.md",
    "notebooks/pages/reference/*.md",
    "monarch_nb/**/*.md",
]
exclude_patterns = [".venv", "build", "**/node_modules", "**/site-packages"]

html_theme = "furo"
html_title = "monarch_nb"
html_show_sphinx = False

# Tutorials are shown with the outputs that `make notebooks` compares: a page isn't the place to run them.
nb_execution_mode = "off"
suppress_warnings = ["mystnb.unknown_mime_type"]  # a card has text and HTML besides its own type
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
default_role = "code"

_GUIDE = (
    "verbs",
    "cells",
    "run",
    "tensors",
    "live_state",
    "debugging",
    "faults",
    "data_plane",
    "sync",
    "clusters",
    "scripts",
    "monarch",
    "coming_from",
    *(
        f"coming_from/{tool}"
        for tool in ("torchrun", "accelerate", "lightning", "ipyparallel", "ray", "dask", "monarch")
    ),
    "speed",
    "reference",
)
_CONTENTS = {
    "Guide": [f"notebooks/pages/{name}" for name in _GUIDE],
    "Tutorials": sorted(f"notebooks/{path.stem}" for path in _ROOT.glob("notebooks/*.ipynb")),
    "Inside": [
        "CONTRIBUTING",
        "notebooks/pages/developing",
        *sorted(f"monarch_nb/{path.parent.name}/README" for path in _ROOT.glob("monarch_nb/*/README.md")),
        "CHANGELOG",
    ],
}


def _add_contents(app: Any, docname: str, source: list[str]) -> None:
    """The table of contents is the site's alone: in the repository README.md would show it as raw text."""
    if docname == root_doc:
        for caption, pages in _CONTENTS.items():
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def _mark_examples(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings indent examples, as Markdown does; reStructuredText wants a mark before them, and takes
    them for quotations else.
    """
    marked: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("    ") and not before.strip() and marked and _last_words(marked)[:1].strip():
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def _last_words(lines: list[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _mark_examples, priority=400)  # before napoleon
    app.connect("source-read", _add_contents)
