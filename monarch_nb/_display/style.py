"""The style sheet of an output: only the rules that its own HTML needs.

Each output brings its style along. A style that only the first output of a notebook had would be lost with
that output (cleared, run again, deleted), and in front ends that show each output in a page of its own
(Colab; an exported cell) it would never reach the others; one that the JupyterLab extension brings is missing
wherever the notebook is only read. All rules together are as large as most outputs, so an output gets those
whose classes occur in it: a few hundred bytes for lines of text.

A style file holds one rule to a line. Its classes begin with `mno-`; the front end's own, in the same page,
with `mnb-`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from monarch_nb._display.template import Markup, source

_CLASSES = re.compile(r'\sclass="([^"]*)"')
_NAME = re.compile(r"\.([A-Za-z][\w-]*)")


def style_for(body: str, file: str) -> Markup:
    """Return a style element with those rules of a file that a piece of HTML needs, including rules for the
    root's class.

    >>> style_for('<i class="mno-fill"></i>', "output.css").splitlines()[-1]
    '.mno .mno-fill{height:100%;background:var(--jp-brand-color1,#1976d2)}</style>'
    """
    used = {"mno"}.union(*(names.split() for names in set(_CLASSES.findall(body))))
    rules = [rule for rule, needs in _rules(file) if any(need <= used for need in needs)]
    return Markup("<style>" + "\n".join(rules) + "</style>")


@lru_cache(maxsize=8)
def _rules(file: str) -> list[tuple[str, list[frozenset[str]]]]:
    """Return the rules in order, each with the classes of its selectors."""
    found = []
    for rule in filter(None, source(file).split("\n")):
        selectors = rule.split("{")[-2].split(",")
        found.append((rule, [frozenset(_NAME.findall(selector)) for selector in selectors]))
    return found
