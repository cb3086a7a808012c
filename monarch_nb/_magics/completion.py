"""Tab completion: verbs, flags, values, mesh names, rank sets; inside `%%mesh`, the variables of the ranks.

The ranks' names are asked from rank 0, which has `ASK_S` to answer; a busy rank just offers nothing. Nothing
is put into the user's namespace for it.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, SimpleMatcherResult, context_matcher

from monarch_nb._magics.values import Values, Word
from monarch_nb._protocol.work import Work
from monarch_nb.actor.handle import transport_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb._magics.mesh_magic import MeshMagics
    from monarch_nb.mesh import Mesh

ASK_S = 0.2
_VERB_HELP = re.compile(r"^(\s*%mesh\s+\w+)\s*\?+\s*$")
_NAME = re.compile(r"[A-Za-z_][\w.]*$")


class Completion:
    """The matcher that IPython asks."""

    def __init__(self, magics: MeshMagics) -> None:
        self._magics = magics
        self._state = magics.state
        self._values = Values(magics.state, lambda: self._remote("", None))

        @context_matcher()
        def matcher(context: Any) -> SimpleMatcherResult:
            return self._match(context)

        matcher.__self__ = self
        self.matcher = matcher

    def _match(self, context: Any) -> SimpleMatcherResult:
        before = context.full_text.splitlines()[: context.cursor_line + 1]
        line = context.line_with_cursor[: context.cursor_position] if before else ""
        if len(before) > 1 and before[0].startswith("%%mesh"):
            return self._in_cell(line, before[0])
        if line.startswith("%%mesh"):
            return self._words(line.removeprefix("%%mesh"), self._magics.cell, "")
        if line.lstrip().startswith("%mesh "):
            return self._after_mesh(line.lstrip().removeprefix("%mesh "))
        return _offer([], "", suppress=False)

    # --- after %mesh

    def _after_mesh(self, text: str) -> SimpleMatcherResult:
        verb, space, rest = text.partition(" ")
        if not space:
            return _offer([v for v in self._magics.verbs if v.startswith(verb)], verb)
        parser = self._magics.verbs.get(verb)
        if parser is None:
            return _offer([], "")
        return self._words(rest, parser, verb)

    def _words(self, text: str, parser: argparse.ArgumentParser, verb: str) -> SimpleMatcherResult:
        """Complete the last word after a verb or `%%mesh`."""
        word = Word(parser, text.split(" "))
        mesh = self._mesh(word.earlier.get("name"))
        if word.is_flag:
            flags = sorted(flag for flag in parser._option_string_actions if flag.startswith("--"))
            return _offer([flag for flag in flags if flag.startswith(word.text)], word.text)
        if word.action is not None and word.action.dest == "ranks":
            return self._ranks(word.text, mesh)
        if word.action is None and not word.text and verb != "help":
            return _offer(sorted(flag for flag in parser._option_string_actions if flag.startswith("--")), "")
        found = self._values.offer(verb, word, mesh)
        return _offer([], "", suppress=False) if found is None else _offer(found[1], found[0])

    def _ranks(self, word: str, mesh: Mesh | None) -> SimpleMatcherResult:
        """Complete a rank set: `all`, and dimensions with their sizes."""
        if mesh is None:
            return _offer([], word)
        start = word.rpartition(",")[2]
        dimension, equals, number = start.partition("=")
        sizes = dict(mesh.sizes)
        if equals:
            return _offer(
                [str(i) for i in range(sizes.get(dimension, 0)) if str(i).startswith(number)], number
            )
        offers = [f"{d}=" for d in sizes] + (["all"] if start == word else [])
        offers += [str(i) for i in range(len(mesh))] if start.isdigit() or not start else []
        return _offer([o for o in offers if o.startswith(start)], start)

    # --- inside a cell for the ranks

    def _in_cell(self, line: str, first: str) -> SimpleMatcherResult:
        match = _NAME.search(line)
        if match is None or line.lstrip().startswith(("%", "!")):
            return _offer([], "", suppress=False)
        found = self._remote(match[0], named_mesh(first))
        # The kernel's own names would mislead here; keywords and builtins still come from IPython if the
        # ranks know nothing.
        return _offer(found, match[0], suppress=bool(found))

    def _mesh(self, name: str | None) -> Mesh | None:
        name = name or self._state.current
        return self._state.meshes.get(name) if name is not None else None

    def _remote(self, text: str, name: str | None) -> list[str]:
        """Ask rank 0 for completions of `text`; none if it doesn't answer in time."""
        mesh = self._mesh(name)
        if mesh is None or transport_of(mesh).closed or not mesh.living_ranks():
            return []
        try:
            found: list[str] = (
                work_on(mesh.part(mesh.living_ranks()[:1]), Work.COMPLETE, text, "completion")
                .get(ASK_S)
                .item()
            )
        except (MeshError, OSError):
            return []
        return found


def named_mesh(first: str) -> str | None:
    """Return the mesh named in the first line of a `%%mesh` cell, if any."""
    name = re.search(r"(?:--name|-n)[ =](\S+)", first)
    return name[1] if name else None


def explain_verbs(lines: list[str]) -> list[str]:
    """Turn `%mesh start?` into `%mesh start --help`: an input transformer, because IPython would look for an
    object `start`.
    """
    return [_VERB_HELP.sub(r"\1 --help", line) for line in lines]


def _type_of(name: str) -> str:
    """Return the type of a completion, as front ends show it."""
    return "flag" if name.startswith("-") else "value"


class _Silence(list[SimpleCompletion]):
    """An empty list of offers that IPython takes for a non-empty one, so that it doesn't offer file names."""

    def __len__(self) -> int:
        return 1


def _offer(names: list[str], fragment: str, *, suppress: bool = True) -> SimpleMatcherResult:
    return {
        "completions": [SimpleCompletion(n, type=_type_of(n)) for n in names]
        if names or not suppress
        else _Silence(),
        "matched_fragment": fragment,
        "suppress": suppress,
    }
