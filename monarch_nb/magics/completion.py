"""What Tab offers: verbs, flags, mesh names, rank sets, files; inside `%%mesh`, the variables of the ranks.

The ranks' names are asked from rank 0, which has `ASK_S` to answer; a busy rank just offers nothing. Nothing is put into the user's
namespace for it. `NAME?` in a `%%mesh` cell is answered by rank 0 itself; in a plain cell, for a name that only the ranks know, by us.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb.magics.mesh_magic import MeshMagics
    from monarch_nb.mesh import Mesh

ASK_S = 0.2
_VERB_HELP = re.compile(r"^(\s*%mesh\s+\w+)\s*\?+\s*$")
_NAME = re.compile(r"[A-Za-z_][\w.]*$")
_NAMED_BY_VERB = ("push", "pull", "scatter", "vars", "diff", "reload")


class Completion:
    """The matcher that IPython asks."""

    def __init__(self, magics: MeshMagics) -> None:
        self._magics = magics
        self._state = magics.state

        @context_matcher()
        def matcher(context: Any) -> dict[str, Any]:
            return self._match(context)

        matcher.__self__ = self
        self.matcher = matcher

    def _match(self, context: Any) -> dict[str, Any]:
        before = context.full_text.splitlines()[: context.cursor_line + 1]
        line = context.line_with_cursor[: context.cursor_position] if before else ""
        if len(before) > 1 and before[0].startswith("%%mesh"):
            return self._in_cell(line, before[0])
        if line.startswith("%%mesh"):
            return self._words(line.removeprefix("%%mesh"), self._magics.cell, [])
        if line.lstrip().startswith("%mesh "):
            return self._after_mesh(line.lstrip().removeprefix("%mesh "))
        return _offer([], "", suppress=False)

    # --- what comes after %mesh

    def _after_mesh(self, text: str) -> dict[str, Any]:
        verb, space, rest = text.partition(" ")
        if not space:
            return _offer([v for v in self._magics.verbs if v.startswith(verb)], verb)
        parser = self._magics.verbs.get(verb)
        if parser is None:
            return _offer([], "")
        return self._words(" " + rest, parser, self._positional(verb))

    def _positional(self, verb: str) -> list[str]:
        from monarch_nb.magics.verbs import NAMES_A_MESH

        if verb in (*NAMES_A_MESH, "stop"):
            return self._mesh_names()
        if verb in ("push", "scatter", "reload"):
            return [n for n in self._state.shell.user_ns if not n.startswith("_")]
        if verb in ("pull", "vars", "diff"):
            return self._remote("", None)
        if verb == "auto":
            return ["on", "off"]
        return []

    def _words(self, text: str, parser: argparse.ArgumentParser, positional: list[str]) -> dict[str, Any]:
        """Complete the last word of what stands after a verb or `%%mesh`."""
        *earlier, word = text.split(" ")
        option = earlier[-1] if earlier and earlier[-1].startswith("-") else ""
        if option in ("--ranks", "-r"):
            return self._ranks(word)
        if option in ("--name", "-n"):
            return _offer([n for n in self._mesh_names() if n.startswith(word)], word)
        actions = parser._option_string_actions
        if option in actions and actions[option].choices:
            return _offer([str(c) for c in actions[option].choices or () if str(c).startswith(word)], word)
        if word.startswith("-"):
            return _offer(sorted(o for o in actions if o.startswith(word) and o.startswith("--")), word)
        start = word.rpartition(",")[2]
        return _offer([n for n in positional if n.startswith(start)], start)

    def _ranks(self, word: str) -> dict[str, Any]:
        """Complete a rank set: `all`, and dimensions with their sizes."""
        mesh = self._mesh(None)
        if mesh is None:
            return _offer([], word)
        start = word.rpartition(",")[2]
        dimension, equals, number = start.partition("=")
        sizes = dict(mesh.sizes)
        if equals:
            return _offer([str(i) for i in range(sizes.get(dimension, 0)) if str(i).startswith(number)], number)
        offers = [f"{d}=" for d in sizes] + (["all"] if start == word else [])
        offers += [str(i) for i in range(len(mesh))] if start.isdigit() or not start else []
        return _offer([o for o in offers if o.startswith(start)], start)

    def _mesh_names(self) -> list[str]:
        from monarch_nb._client.launch import list_connections

        return [c.name for c in list_connections()]

    # --- inside a cell for the ranks

    def _in_cell(self, line: str, first: str) -> dict[str, Any]:
        match = _NAME.search(line)
        if match is None or line.lstrip().startswith(("%", "!")):
            return _offer([], "", suppress=False)
        name = re.search(r"(?:--name|-n)[ =](\S+)", first)
        found = self._remote(match[0], name[1] if name else None)
        # The kernel's own names would mislead here; keywords and builtins still come from IPython if the ranks know nothing.
        return _offer(found, match[0], suppress=bool(found))

    def _mesh(self, name: str | None) -> Mesh | None:
        name = name or self._state.current
        return self._state.meshes.get(name) if name is not None else None

    def _remote(self, text: str, name: str | None) -> list[str]:
        """Ask rank 0 what `text` may go on with; nothing if it doesn't answer in time."""
        return self.ask(name, b"complete", text) or []

    def ask(self, name: str | None, work: bytes, fields: object) -> Any:
        """Have the first living rank of a mesh do some work, in at most `ASK_S`; None if that can't be."""
        mesh = self._mesh(name)
        if mesh is None or mesh._office.closed or not mesh.living_ranks():
            return None
        try:
            return mesh.part(mesh.living_ranks()[:1])._work(work, fields, "completion").get(ASK_S).item()
        except (MeshError, OSError):
            return None


class RemoteHelp:
    """Shift+Tab on a name that only the ranks know: rank 0 tells. Stands in front of the shell's own look-up."""

    def __init__(self, completion: Completion, shell: Any) -> None:
        self._completion = completion
        self._shell = shell
        self._own = shell.object_inspect_mime

    def install(self) -> None:
        """Stand in front."""
        self._shell.object_inspect_mime = self

    def __call__(self, name: str, detail_level: int = 0, omit_sections: Any = ()) -> dict[str, Any]:
        """Return what the kernel knows of a name, else what rank 0 does.

        Raises:
            KeyError: if neither knows it.
        """
        try:
            return dict(self._own(name, detail_level=detail_level, omit_sections=omit_sections))
        except KeyError:
            found = self._completion.ask(None, b"look_at", name)
            if found is None:
                raise
            return {"text/plain": help_text(found)}


def explain_verbs(lines: list[str]) -> list[str]:
    """An input transformer: `%mesh start?` is `%mesh start --help`; IPython would look for an object `start`."""
    return [_VERB_HELP.sub(r"\1 --help", line) for line in lines]


def help_text(found: dict[str, Any]) -> str:
    """Return what is known of a name as IPython would put it."""
    lines = [f"Signature: {found['signature']}"] if found["signature"] else []
    lines.append(f"Type:      {found['type']} (on rank 0)")
    lines += [f"{key.title() + ':':<10} {found[key]}" for key in ("shape", "dtype", "device") if found.get(key)]
    lines.append(f"String form: {found['repr']}")
    if found["doc"]:
        lines.append(f"Docstring:\n{found['doc']}")
    return "\n".join(lines)


def _offer(names: list[str], fragment: str, *, suppress: bool = True) -> dict[str, Any]:
    return {
        "completions": [SimpleCompletion(n) for n in names],
        "matched_fragment": fragment,
        "suppress": suppress,
    }
