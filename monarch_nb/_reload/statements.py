"""Which statements of a source are new, and which names it binds. Pure."""

from __future__ import annotations
import __future__

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Difference:
    """How a body of statements differs from what it was.

    Attributes:
        statements: what is to be executed, in order: what wasn't there before.
        bound: names that these bind.
        gone: names that the old body has bound and the new one doesn't.
    """

    statements: tuple[ast.stmt, ...]
    bound: tuple[str, ...]
    gone: tuple[str, ...]


def difference(old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> Difference:
    """Return which statements of `new` aren't in `old`: neither comments, nor layout, nor order count.

    Example:
        >>> found = difference(ast.parse("a = 1\\nb = 2").body, ast.parse("b = 2\\nc = 3").body)
        >>> found.bound, found.gone
        (('c',), ('a',))
    """
    known = Counter(ast.dump(node) for node in old)
    changed = []
    for node in new:
        text = ast.dump(node)
        if known[text]:
            known[text] -= 1
        else:
            changed.append(node)
    remain = {name for node in new for name in bound_names(node)}
    before = dict.fromkeys(name for node in old for name in bound_names(node))
    bound = dict.fromkeys(name for node in changed for name in bound_names(node))
    return Difference(tuple(changed), tuple(bound), tuple(name for name in before if name not in remain))


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
    """Return the functions and classes that statements define in their own scope, also below `if` and `try`; the last of each name."""
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
