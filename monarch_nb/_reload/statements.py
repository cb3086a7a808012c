"""Finds which statements of a source are new, and which names statements bind. Pure."""

from __future__ import annotations
import __future__

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


class Difference(msgspec.Struct, frozen=True):
    """The difference between a body of statements and what it was before.

    Attributes:
        statements: statements to execute, in order: those that are new.
        bound: names that these bind.
        gone: names that the old body has bound and the new one doesn't.
    """

    statements: tuple[ast.stmt, ...]
    bound: tuple[str, ...]
    gone: tuple[str, ...]


def difference(
    old: Sequence[ast.stmt], new: Sequence[ast.stmt], texts: tuple[str, str] | None = None
) -> Difference:
    """Return which statements of `new` aren't in `old`: neither comments, nor layout, nor order count.

    Args:
        texts: the sources of both, if they're at hand: to compare lines is quicker.

    Example:
        >>> found = difference(ast.parse("a = 1\\nb = 2").body, ast.parse("b = 2\\nc = 3").body)
        >>> found.bound, found.gone
        (('c',), ('a',))
    """
    others, candidates = (old, new) if texts is None else _without_equal_lines(old, new, *texts)
    known = Counter(ast.dump(node) for node in others)
    changed = []
    for node in candidates:
        text = ast.dump(node)
        if known[text]:
            known[text] -= 1
        else:
            changed.append(node)
    remain = {name for node in new for name in bound_names(node)}
    before = dict.fromkeys(name for node in old for name in bound_names(node))
    bound = dict.fromkeys(name for node in changed for name in bound_names(node))
    return Difference(tuple(changed), tuple(bound), tuple(name for name in before if name not in remain))


def is_in_place(
    old: Sequence[ast.stmt], new: Sequence[ast.stmt], texts: tuple[str, str], found: Difference
) -> bool:
    """Say whether all statements that are as before stand on the lines on which they stood, so that no line
    number changes; False if it isn't certain.
    """
    if len(old) != len(new) or any(_is_future(node) for node in found.statements):
        return False  # a future statement counts only where a module begins: all of it is to be compiled
    changed = {id(node) for node in found.statements}
    before, now = (text.split("\n") for text in texts)  # as the parser counts: a form feed ends no line
    for one, other in zip(old, new, strict=True):
        span, other_span = _span(one), _span(other)
        if id(other) not in changed and (span != other_span or before[span] != now[span]):
            return False
    return True


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _span(node: ast.stmt) -> slice:
    """Return which lines a statement stands on."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return slice(first - 1, node.end_lineno or node.lineno)


def _without_equal_lines(
    old: Sequence[ast.stmt], new: Sequence[ast.stmt], old_text: str, new_text: str
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements of both whose lines aren't in the other."""
    old_lines, new_lines = _lines_of(old, old_text), _lines_of(new, new_text)
    common = Counter(old_lines) & Counter(new_lines)
    del common[""]
    return _beyond(old, old_lines, common.copy()), _beyond(new, new_lines, common)


def _beyond(nodes: Sequence[ast.stmt], lines: Sequence[str], common: Counter[str]) -> list[ast.stmt]:
    rest = []
    for node, text in zip(nodes, lines, strict=True):
        if common[text] > 0:
            common[text] -= 1
        else:
            rest.append(node)
    return rest


def _lines_of(nodes: Sequence[ast.stmt], text: str) -> list[str]:
    """Return the lines of each statement; "" for one that shares a line with another."""
    lines = text.splitlines()
    if len(lines) != text.count("\n") + (not text.endswith("\n")):
        return [""] * len(nodes)  # form feeds and the like: the parser counts other lines
    spans = [_span(node) for node in nodes]
    shared = Counter(line for span in spans for line in {span.start, span.stop - 1})
    return [
        "" if shared[span.start] > 1 or shared[span.stop - 1] > 1 else "\n".join(lines[span])
        for span in spans
    ]


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its own scope."""
    if isinstance(node, _SCOPES):
        if isinstance(node, Definition):
            yield node.name
            for decorator in node.decorator_list:
                yield from bound_names(decorator)
        return
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    for child in ast.iter_child_nodes(node):
        yield from bound_names(child)


def definitions(body: Sequence[ast.stmt]) -> dict[str, Definition]:
    """Return the functions and classes that statements define in their own scope, also below `if` and
    `try`; the last of each name.
    """
    found: dict[str, Definition] = {}
    for node in body:
        if isinstance(node, Definition):
            found[node.name] = node
        else:
            found.update(definitions(list(_statements_in(node))))
    return found


def _statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _statements_in(child)


def future_flags(tree: ast.Module) -> int:
    """Return the compiler's flags for the future statements of a module."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def imported_names(tree: ast.Module, package: str) -> Iterator[tuple[str, str, str]]:
    """Yield (module, its name there, the name here) for each `from module import name` at the top level.

    Args:
        package: the package that relative imports are relative to.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if node.level:
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            module = ".".join([*base, module]) if module else ".".join(base)
        for alias in node.names:
            yield module, alias.name, alias.asname or alias.name
