"""Reloads modules: their new statements take effect, and nothing has changed if one raises.

Only statements that weren't there before are executed, in the module's own namespace: a table that was
filled, a model that was loaded stay. Then functions and classes that were defined anew give their code to the
old objects, which stay bound (`patch`).
"""

from __future__ import annotations

import ast
import gc
import linecache
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import invalidate_caches
from importlib.util import decode_source
from types import CodeType, ModuleType
from typing import Any

import msgspec

from monarch_nb._cells import Namespace
from monarch_nb._reload.lines import move_lines
from monarch_nb._reload.loaded import Changed, Loaded, changed_modules, is_current, known_modules
from monarch_nb._reload.patch import CannotPatch, Same, is_a, is_patchable, patch
from monarch_nb._reload.report import Change, ChangeKind, ModuleReload, RankReload, ReloadRequest
from monarch_nb._reload.statements import (
    Definition,
    Difference,
    definitions,
    difference,
    future_flags,
    imported_names,
    is_in_place,
)

MAX_TABLE = 10_000
"""Tables with more entries aren't searched for registered objects."""
GUARDS_CODE = (2, 13)
"""The first version of torch whose guards notice that a function has new code."""
_NO_SWITCH_S = 10.0
"""The interpreter's switch interval while objects take on new code: other threads don't run then, so that
none sees an inconsistent class.
"""


AFTER: list[Callable[[], Sequence[str]]] = []
"""Called after each reload that has changed something, by modules that cache facts about classes; they return
what continues to run old code.
"""


def reload_changed(request: ReloadRequest) -> RankReload:
    """Reload the modules of this process whose files have changed, having compared all of each file.

    Raises:
        KeyboardInterrupt: if the user has interrupted what a module runs; that module is as before.
    """
    changed = changed_modules(request.paths, thoroughly=True)
    if request.is_dry:
        return RankReload(tuple(preview(changed)), len(known_modules()))
    modules = reload_modules(changed)
    return RankReload(tuple(modules), len(known_modules()), tuple(finish(modules)))


def finish(modules: Sequence[ModuleReload]) -> list[str]:
    """Renew cached facts about changed classes; return a line about each object that continues to run old
    code.
    """
    done = [module for module in modules if module.is_done]
    notes = [note for module in done for note in module.notes()]
    for renew in AFTER if done else ():
        notes += renew()
    return notes


class _Plan(msgspec.Struct, frozen=True):
    """A module, and the changes to apply to it.

    Attributes:
        codes: code of the statements to execute.
        whole: the code of the whole module, if some of it now stands on other lines.
    """

    changed: Changed
    module: ModuleType
    old: ast.Module
    new: ast.Module
    codes: tuple[CodeType, ...]
    whole: CodeType | None
    difference: Difference

    @property
    def path(self) -> str:
        return self.changed.loaded.known_as


def reload_modules(changed: Sequence[Changed]) -> list[ModuleReload]:
    """Have modules run the code that their files hold.

    If one can't be compiled, none is reloaded; if one raises, it is as before, and those after it wait.

    Args:
        changed: in the order of their import, as `changed_modules` returns them.

    Raises:
        KeyboardInterrupt: if the user has interrupted what a module runs; that module is as before.
    """
    results: list[ModuleReload] = []
    plans: list[_Plan] = []
    for each in changed:
        found = _plan(each)
        if isinstance(found, _Plan):
            plans.append(found)
        else:
            results.append(found)
    invalidate_caches()
    failed = any(result.error for result in results)
    for plan in plans:
        loaded = plan.changed.loaded
        if failed:
            results.append(
                ModuleReload(loaded.name, loaded.known_as, trouble="waits for the module that has failed")
            )
            continue
        result = _reload(plan)
        failed = not result.is_done
        results.append(result)
    if plans:
        _reset_compiler()
    return results


def preview(changed: Sequence[Changed]) -> list[ModuleReload]:
    """Return the changes that a reload would make, without making them: the names that changed statements
    bind.
    """
    found = []
    for plan in map(_plan, changed):
        if isinstance(plan, ModuleReload):
            found.append(plan)
            continue
        names = [*plan.difference.bound, *plan.difference.gone]
        text = ", ".join(names) or ("statements" if plan.difference.statements else "nothing that runs")
        found.append(ModuleReload(plan.changed.loaded.name, plan.path, trouble=f"would change {text}"))
    return found


def _plan(changed: Changed) -> _Plan | ModuleReload:
    """Return the plan of a module's reload, or the reason why it can't be reloaded."""
    loaded = changed.loaded
    if loaded.source is None:
        return ModuleReload(
            loaded.name, loaded.known_as, trouble="an extension module can't be reloaded: %mesh restart"
        )
    if changed.source is None:
        why = "is gone" if changed.is_gone else "can't be read"
        return ModuleReload(loaded.name, loaded.known_as, trouble=f"its file {why}; what was loaded goes on")
    if not isinstance(sys.modules.get(loaded.name), ModuleType):
        return ModuleReload(
            loaded.name,
            loaded.known_as,
            trouble="it has put another object in its place, and can't be reloaded: %mesh restart",
        )
    try:
        return _compared(changed, loaded.source, changed.source)
    except (SyntaxError, ValueError, UnicodeDecodeError, RecursionError) as error:
        return ModuleReload(
            loaded.name, loaded.known_as, error="".join(traceback.format_exception_only(error))
        )


def _compared(changed: Changed, before: bytes, now: bytes) -> _Plan:
    """Return the plan of a module's reload, of its old and new source. Nothing is parsed or compiled that
    needn't be: eight ranks of a host do this at once.
    """
    loaded = changed.loaded
    texts = decode_source(before), decode_source(now)
    new = ast.parse(texts[1], loaded.known_as)
    old = loaded.tree or ast.parse(texts[0], loaded.known_as)
    flags = future_flags(new)
    is_as_before = future_flags(old) == flags
    found = difference(old.body, new.body, texts) if is_as_before else difference([], new.body)

    def code_of(tree: ast.Module) -> CodeType:
        code: CodeType = compile(tree, loaded.known_as, "exec", dont_inherit=True, flags=flags)
        return code

    whole = None if is_as_before and is_in_place(old.body, new.body, texts, found) else code_of(new)
    codes = tuple(code_of(ast.Module([statement], [])) for statement in found.statements)
    return _Plan(changed, sys.modules[loaded.name], old, new, codes, whole, found)


def _reload(plan: _Plan) -> ModuleReload:
    loaded = plan.changed.loaded
    namespace = plan.module.__dict__
    before = dict(namespace)
    linecache.checkcache(plan.path)
    try:
        _execute(plan, namespace)
    except KeyboardInterrupt:
        _put_back(namespace, before)
        raise
    except BaseException as error:
        _put_back(namespace, before)
        return ModuleReload(loaded.name, loaded.known_as, error=_traceback_of(error))
    with _undisturbed():
        changes = list(_take_on(plan, namespace, before))
        if plan.whole is not None:
            with suppress(Exception):
                move_lines(plan.module, plan.whole)
    is_current(loaded, plan.changed.source, plan.new)
    return ModuleReload(loaded.name, loaded.known_as, tuple(changes))


def _execute(plan: _Plan, namespace: Namespace) -> None:
    """Execute the new statements."""
    namespace["__doc__"] = ast.get_docstring(plan.new, clean=False)
    for code in plan.codes:
        exec(code, namespace)


def _put_back(namespace: Namespace, before: Namespace) -> None:
    for name in [n for n in namespace if n not in before]:
        del namespace[name]
    namespace.update(before)


def _take_on(plan: _Plan, namespace: Namespace, before: Namespace) -> Iterator[Change]:
    """Give old objects the code of new ones, and bind their names to them again."""
    old_nodes, new_nodes = definitions(plan.old.body), definitions(plan.new.body)
    same = Same()
    for name in plan.difference.bound:
        if name not in namespace:  # bound and deleted again
            continue
        new = namespace[name]
        if name not in before:
            same.adapt(new)
            yield Change(ChangeKind.NEW, name)
        elif new is not before[name]:
            yield _take_on_one(
                plan, namespace, name, before[name], old_nodes.get(name), new_nodes.get(name), same
            )
    for name in plan.difference.gone:
        if name in namespace:
            del namespace[name]
            yield Change(ChangeKind.GONE, name)


def _take_on_one(
    plan: _Plan,
    namespace: Namespace,
    name: str,
    old: Any,
    old_node: Definition | None,
    new_node: Definition | None,
    same: Same,
) -> Change:
    new = namespace[name]
    if not is_patchable(old) or not is_patchable(new) or _is_foreign(plan, new):
        same.adapt(new)
        _rebind(plan.module.__name__, name, old, new)
        return Change(ChangeKind.VALUE, name)
    try:
        patch(old, new, old_node, new_node, same)
    except Exception as error:  # a descriptor or a metaclass of the user's may raise anything
        same.adapt(new)
        _rebind(plan.module.__name__, name, old, new)
        return Change(
            ChangeKind.REPLACED,
            name,
            str(error) if isinstance(error, CannotPatch) else f"{type(error).__name__}: {error}",
        )
    namespace[name] = old
    _replace_in_tables(old, new)
    _patch_stand_ins(plan, name, old, new, new_node)
    return Change(ChangeKind.CLASS if is_a(old, type) else ChangeKind.FUNCTION, name)


def _imported_by(loaded: Loaded) -> tuple[tuple[str, str, str], ...]:
    """Return the imports by name of a module: (module, name there, name here)."""
    if loaded.imported is None:
        package = getattr(sys.modules.get(loaded.name), "__package__", None) or ""
        try:
            loaded.imported = tuple(imported_names(ast.parse(loaded.source or b""), package))
        except (SyntaxError, ValueError):
            loaded.imported = ()
    return loaded.imported


_stand_ins: dict[tuple[str, str], list[weakref.ref[Any]]] = {}
"""By module and name: functions and classes defined by a reload whose code was moved to an older object.
References to them may exist (in a table, an instance), and they run new code, too.
"""
COLLECT_AT = 32
"""At this number per name, or at twice the number held last time, garbage is removed."""
_collect_at: dict[tuple[str, str], int] = {}


def _patch_stand_ins(plan: _Plan, name: str, old: Any, new: Any, new_node: Definition | None) -> None:
    key = (plan.module.__name__, name)
    known = _stand_ins.setdefault(key, [])
    _forget_collected(key, known)
    for held in [each() for each in known]:
        if held is not None and held is not old:
            with suppress(Exception):
                patch(held, new, new_node, new_node, Same())
    with suppress(TypeError):  # an object without weak references
        known.append(weakref.ref(new))


def _forget_collected(key: tuple[str, str], known: list[weakref.ref[Any]]) -> None:
    """Drop unreferenced objects. A class refers to itself: after many edits the garbage collector is called,
    or each edit would patch all earlier versions.
    """
    known[:] = [each for each in known if each() is not None]
    if len(known) >= _collect_at.get(key, COLLECT_AT):
        gc.collect()
        known[:] = [each for each in known if each() is not None]
        _collect_at[key] = max(COLLECT_AT, 2 * len(known))


def _is_foreign(plan: _Plan, value: Any) -> bool:
    """Say whether a function or class is of another module: imported by a statement that has changed."""
    try:
        return bool(value.__module__ != plan.module.__name__)
    except Exception:
        return True


def _rebind(module: str, name: str, old: Any, new: Any) -> None:
    """Bind a new value where the user's other modules, or the notebook, have imported the old one by name."""
    for loaded in known_modules().values():
        if not loaded.source or name.encode() not in loaded.source or b"import" not in loaded.source:
            continue
        other = sys.modules.get(loaded.name)
        for source, there, here in _imported_by(loaded):
            if source == module and there == name and other is not None and vars(other).get(here) is old:
                setattr(other, here, new)
    main = sys.modules.get("__main__")
    if main is not None and vars(main).get(name) is old:
        setattr(main, name, new)


def _replace_in_tables(old: Any, new: Any) -> None:
    """Put the old object into lists and dicts of the user's modules that a decorator or a metaclass has
    put the new one into.
    """
    for table in _tables():
        if len(table) > MAX_TABLE:
            continue
        if isinstance(table, dict):
            for key in [k for k, v in table.items() if v is new]:
                table[key] = old
        elif any(v is new for v in table):
            kept = [v for v in table if v is not new]
            table[:] = kept if any(v is old for v in kept) else [old if v is new else v for v in table]


def _tables() -> Iterator[dict[Any, Any] | list[Any]]:
    """Yield the dicts and lists that the user's modules, and their classes, have as attributes."""
    for loaded in known_modules().values():
        module = sys.modules.get(loaded.name)
        for value in list(vars(module).values()) if isinstance(module, ModuleType) else ():
            if type(value) in (dict, list):
                yield value
            elif is_a(value, type) and value.__module__ == loaded.name:
                yield from [each for each in list(vars(value).values()) if type(each) in (dict, list)]


@contextmanager
def _undisturbed() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_NO_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _traceback_of(error: BaseException) -> str:
    """Return the traceback without our own frames."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename == __file__:
        found = found.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, found))
    except Exception:  # raised while its message was made
        return f"{type(error).__name__} (its message can't be shown)\n"


def _reset_compiler() -> None:
    """Have an older torch.compile look at functions again: it went on with the old code of methods that it
    had compiled (pytorch #197860).

    Since `GUARDS_CODE` its guards notice (`tests/unit/test_reload.py` tries it), and what hasn't changed
    stays compiled.
    """
    torch, dynamo = sys.modules.get("torch"), sys.modules.get("torch._dynamo")
    if torch is not None and dynamo is not None:
        with suppress(Exception):
            if torch.__version__ < GUARDS_CODE:
                dynamo.reset()
