"""An edited module takes effect in a living process, and objects keep their identity."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monarch_nb._reload import ChangeKind, ModuleReload, changed_modules, reload_modules
from monarch_nb._reload import loaded as loaded_modules
from monarch_nb._reload import module as reloading

Edit = Callable[[str], ModuleReload]
NUM_SAVES = 10_000 if os.environ.get("MONARCH_NB_HOSTILE") == "full" else 60


@pytest.fixture(autouse=True)
def noting() -> Iterator[None]:
    loaded_modules.install()
    yield
    loaded_modules.uninstall()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    sys.modules.pop("edited", None)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(path: Path, source: str) -> None:
    path.write_text(textwrap.dedent(source))


def load(folder: Path, source: str, name: str = "edited") -> ModuleType:
    write(folder / f"{name}.py", source)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def edit(folder: Path, source: str, name: str = "edited") -> ModuleReload:
    write(folder / f"{name}.py", source)
    return only(reload_modules(changed_modules()))


def only(results: list[ModuleReload]) -> ModuleReload:
    assert len(results) == 1, results
    return results[0]


def kinds(result: ModuleReload) -> dict[str, ChangeKind]:
    assert result.is_done, result
    return {change.name: change.kind for change in result.changes}


ZOO = """
    import dataclasses, enum, functools
    STATE = {"n": 0}
    COUNT = 1

    def decorated(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            return f(*args, **kwargs)
        return inner

    class Base:
        def who(self):
            return "base1"

    class A(Base):
        K = 1
        made = 0

        def __init__(self):
            self.x = 1
            type(self).made += 1

        def step(self):
            return ("v1", self.x, helper())

        @property
        def p(self):
            return "p1"

        @staticmethod
        def s():
            return "s1"

        @classmethod
        def c(cls):
            return "c1"

        @decorated
        def d(self):
            return "d1"

        def sup(self):
            return super().who()

        class Inner:
            def f(self):
                return "inner1"

        def gone(self):
            return "here"

    @dataclasses.dataclass
    class D:
        a: int = 1

    class E(enum.Enum):
        X = 1

    def helper():
        return "h1"

    @functools.lru_cache
    def cached(x):
        return ("cached1", x)

    def outer():
        def inner():
            return "closure1"
        return inner
"""
EDITED_ZOO = (
    ZOO.replace('"v1"', '"v2"')
    .replace('"p1"', '"p2"')
    .replace('"s1"', '"s2"')
    .replace('"c1"', '"c2"')
    .replace('"d1"', '"d2"')
    .replace('"h1"', '"h2"')
    .replace("base1", "base2")
    .replace("closure1", "closure2")
    .replace("K = 1", "K = 2")
    .replace("COUNT = 1", "COUNT = 2")
    .replace("inner1", "inner2")
    .replace("cached1", "cached2")
    .replace(
        'def gone(self):\n            return "here"',
        'def added(self):\n            return (super().who(), "new")',
    )
    .replace("a: int = 1", "a: int = 1\n        b: int = 2")
    .replace("X = 1", "X = 1\n        Y = 2")
)


def test_living_objects_run_the_new_code(folder: Path) -> None:
    m = load(folder, ZOO)
    a, cls, helper, cached, inner = m.A(), m.A, m.helper, m.cached, m.A.Inner()
    bound, data, data_class, member, made = a.step, m.D(), m.D, m.E.X, m.outer()
    static, klass, decorated = m.A.s, a.c, a.d
    m.STATE["n"] = 7
    cached(1)

    class Sub(cls):
        pass

    sub = Sub()
    found = kinds(edit(folder, EDITED_ZOO))
    assert a.step() == bound() == sub.step() == ("v2", 1, "h2")
    assert (helper(), a.p, m.A.s(), static(), m.A.c(), klass(), a.d(), decorated()) == (
        "h2",
        "p2",
        "s2",
        "s2",
        "c2",
        "c2",
        "d2",
        "d2",
    )
    assert (a.sup(), sub.sup(), a.added(), sub.added()) == (
        "base2",
        "base2",
        ("base2", "new"),
        ("base2", "new"),
    )
    assert not hasattr(a, "gone") and (a.K, m.COUNT, m.STATE) == (2, 2, {"n": 7})
    assert a.made == 1, "a counter that the class keeps goes on counting"
    assert m.A is cls and isinstance(a, m.A) and pickle.loads(pickle.dumps(a)).step() == ("v2", 1, "h2")
    assert inner.f() == "inner2" and isinstance(inner, m.A.Inner)
    assert cached is m.cached and cached(1) == ("cached2", 1)
    assert m.D is data_class and m.D() == m.D(1, 2) and isinstance(data, m.D) and data.b == 2
    assert m.E.X is not member and found["E"] is ChangeKind.REPLACED
    assert m.outer()() == "closure2" and made() == "closure1", (
        "a closure that lives goes on: its function is made by each call"
    )
    assert (
        found["A"] is ChangeKind.CLASS
        and found["helper"] is ChangeKind.FUNCTION
        and found["COUNT"] is ChangeKind.VALUE
    )
    assert "STATE" not in found and "decorated" not in found


def test_a_second_edit_and_the_way_back(folder: Path) -> None:
    m = load(folder, ZOO)
    a = m.A()
    for source, word in ((EDITED_ZOO, "v2"), (ZOO, "v1"), (EDITED_ZOO, "v2")):
        edit(folder, source)
        assert a.step()[0] == word and m.A().step()[0] == word


def test_names_that_others_have_imported(folder: Path) -> None:
    """A plain value has no identity to keep: whoever has imported it by name gets the new one."""
    load(folder, "RATE = 0.1\ndef f():\n    return RATE\n", "config_of")
    user = load(folder, "from config_of import RATE as rate, f\ndef g():\n    return rate, f()\n", "user_of")
    result = edit(folder, "RATE = 0.2\ndef f():\n    return RATE * 10\n", "config_of")
    assert result.is_done and user.g() == (0.2, 2.0)


def test_only_what_is_new_is_executed(folder: Path) -> None:
    m = load(folder, "log = []\nlog.append(1)\nx = object()\n# a comment\ndef f(): return 1\n")
    x = m.x
    result = edit(
        folder, "log = []\nlog.append(1)\n\n\nx = object()\nlog.append(2)\ndef f(): return 1  # another\n"
    )
    assert m.log == [1, 2] and m.x is x and result.changes == ()
    assert result.summary() == "edited.py (nothing that runs)"


def test_gone_and_new_names(folder: Path) -> None:
    m = load(folder, "a = 1\ndef f(): return 1\nimport json\n")
    m.by_hand = 5
    assert kinds(edit(folder, "def g(): return 2\nimport json\n")) == {
        "g": ChangeKind.NEW,
        "a": ChangeKind.GONE,
        "f": ChangeKind.GONE,
    }
    assert not hasattr(m, "a") and m.g() == 2 and m.by_hand == 5


def test_definitions_below_if_and_try(folder: Path) -> None:
    source = """
        try:
            import there_is_no_such_module
        except ImportError:
            class C:
                def f(self):
                    return 1
        if True:
            def g():
                return 1
    """
    m = load(folder, source)
    c, g = m.C(), m.g
    edit(folder, source.replace("return 1", "return 2"))
    assert c.f() == g() == 2 and m.g is g


def test_a_registry_holds_the_one_class(folder: Path) -> None:
    source = """
        REGISTRY = {}
        HOOKS = []
        def register(cls):
            REGISTRY[cls.__name__] = cls
            return cls
        def hook(f):
            HOOKS.append(f)
            return f
        @register
        class Net:
            def f(self):
                return 1
        @hook
        def h():
            return 1
    """
    m = load(folder, source)
    for n in (2, 3):
        edit(folder, source.replace("return 1", f"return {n}"))
        assert m.REGISTRY["Net"] is m.Net and m.Net().f() == n
        assert [f() for f in m.HOOKS] == [n] and m.HOOKS[0] is m.h


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("class C:\n    __slots__ = ('a',)\n", "class C:\n    __slots__ = ('a', 'b')\n", "other slots"),
        ("class C:\n    pass\n", "import abc\nclass C(abc.ABC):\n    pass\n", "another metaclass"),
        ("class C(dict):\n    pass\n", "class C(list):\n    pass\n", "bases|layout"),
        (
            "import typing\nclass C(typing.NamedTuple):\n    a: int\n",
            "import typing\nclass C(typing.NamedTuple):\n    b: int\n",
            "fields",
        ),
        ("class C:\n    pass\n", "def C():\n    pass\n", "neither"),
    ],
)
def test_what_cannot_be_patched_is_named(folder: Path, before: str, after: str, why: str) -> None:
    m = load(folder, before)
    old = m.C
    result = edit(folder, after)
    change = next(c for c in result.changes if c.name == "C")
    assert change.kind is ChangeKind.REPLACED and any(word in change.detail for word in why.split("|")), (
        change
    )
    assert m.C is not old and "who holds the old C keeps it" in result.notes()[0]


@pytest.mark.parametrize(
    "broken",
    ["def f(:\n", "x = 1\nraise ValueError('no')\n", "x = 1\n1 / 0\n",
     "def f():\n    return 2\nimport there_is_no_such_module\n", "x = 1\nraise SystemExit\n",
     "\x00", "# coding: nonsense\n"],
)  # fmt: skip
def test_a_module_that_raises_is_as_before(folder: Path, broken: str) -> None:
    m = load(folder, "y = 1\ndef f():\n    return 1\n")
    before = dict(vars(m))
    result = edit(folder, broken)
    assert not result.is_done and result.error and "_reload/" not in result.error
    assert {k: v for k, v in vars(m).items() if k != "__builtins__"} == {
        k: v for k, v in before.items() if k != "__builtins__"
    }
    again = only(reload_modules(changed_modules()))
    assert again.error, "it is tried again, though no further event tells of it"
    assert kinds(edit(folder, "y = 1\ndef f():\n    return 3\n")) == {"f": ChangeKind.FUNCTION} and m.f() == 3


def test_an_interrupted_reload_leaves_the_module_as_it_was(folder: Path) -> None:
    m = load(folder, "a = 1\n")
    with pytest.raises(KeyboardInterrupt):
        edit(folder, "a = 2\nraise KeyboardInterrupt\n")
    assert m.a == 1 and kinds(edit(folder, "a = 3\n")) == {"a": ChangeKind.VALUE}


def test_one_that_cannot_be_compiled_keeps_all_as_they_are(folder: Path) -> None:
    one, two = load(folder, "a = 1\n", "one_of"), load(folder, "a = 1\n", "two_of")
    write(folder / "one_of.py", "a = 2\n")
    write(folder / "two_of.py", "a = \n")
    found = reload_modules(changed_modules())
    assert (one.a, two.a) == (1, 1) and {r.name: bool(r.error) for r in found} == {
        "two_of": True,
        "one_of": False,
    }
    write(folder / "two_of.py", "a = 2\n")
    reload_modules(changed_modules())
    assert (one.a, two.a) == (2, 2)


def test_tracebacks_of_functions_that_moved_name_their_lines(folder: Path) -> None:
    source = (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def w(): return f()\n    return w\n"
        "\n@deco\ndef f():\n    return 1 / 0\nclass C:\n    def m(self):\n        return 1 / 0\n"
    )
    m = load(folder, source)
    c = m.C()
    edit(folder, "# one\n# two\n# three\n" + source)
    for function, line in ((m.f, 12), (c.m, 15)):
        with pytest.raises(ZeroDivisionError) as raised:
            function()
        assert raised.traceback[-1].lineno + 1 == line


def test_two_functions_of_equal_length_that_have_changed_places(folder: Path) -> None:
    one, two = "def f():\n    return 1 / 0\n", "def g():\n    return 2 / 0\n"
    m = load(folder, one + two)
    for order, line in ((two + one, 4), (one + two, 2), ("", 0)):
        edit(folder, order or one + two.replace("2 / 0", "3 / 0"))
        with pytest.raises(ZeroDivisionError) as raised:
            m.f()
        assert raised.traceback[-1].lineno + 1 == (line or 2)


def test_a_future_statement_that_comes_too_late_is_an_error(folder: Path) -> None:
    m = load(folder, "X = 1\nY = 2\n")
    result = edit(folder, "X = 3\nfrom __future__ import annotations\n")
    assert "must occur at the beginning" in result.error and m.X == 1


def test_a_file_that_is_gone(folder: Path) -> None:
    m = load(folder, "a = 1\n")
    (folder / "edited.py").unlink()
    result = only(reload_modules(changed_modules()))
    assert "gone" in result.trouble and m.a == 1


def test_the_whole_folder_is_exchanged(folder: Path) -> None:
    """A link that is switched, as releases are: no event tells of it."""
    for name, value in (("v1", 1), ("v2", 2)):
        (folder / name).mkdir()
        write(folder / name / "released.py", f"a = {value}\n")
    (folder / "current").symlink_to("v1")
    sys.path.insert(0, str(folder / "current"))
    try:
        m: Any = importlib.import_module("released")
        (folder / "next").symlink_to("v2")
        os.replace(folder / "next", folder / "current")
        assert only(reload_modules(changed_modules())).is_done and m.a == 2
        write(folder / "v2" / "released.py", "a = 3\n")
        assert only(reload_modules(changed_modules())).is_done and m.a == 3
    finally:
        sys.path.remove(str(folder / "current"))


def test_an_edit_of_equal_length_within_a_second_is_seen_by_an_import(folder: Path) -> None:
    """Byte code is valid by whole seconds of its source's time, and by its size."""
    for n in range(10):
        write(folder / "edited.py", f"a = {n}\n")
        sys.modules.pop("edited", None)
        assert importlib.import_module("edited").a == n


@pytest.mark.parametrize("how", ["in place", "by rename", "blind"])
def test_no_save_is_missed(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "blind":  # a network file system
        monkeypatch.setattr("monarch_nb._reload.watch._is_remote", lambda directory: True)
    m = load(folder, "a = 0\n")
    path, beside = folder / "edited.py", folder / "edited.tmp"
    for n in range(1, NUM_SAVES):
        if how == "by rename":
            beside.write_text(f"a = {n % 10}\n")
            os.replace(beside, path)
        else:
            path.write_text(f"a = {n % 10}\n")
        reload_modules(changed_modules())
        assert m.a == n % 10
        assert not changed_modules()


def test_forked_children_do_not_take_events(folder: Path) -> None:
    m = load(folder, "a = 1\n")
    (folder / "edited.py").write_text("a = 2\n")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if reload_modules(changed_modules()) and m.a == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert only(reload_modules(changed_modules())).is_done and m.a == 2


def test_libraries_are_left_alone() -> None:
    names = loaded_modules.known_modules()
    assert not {"json", "numpy", "pytest", "monarch_nb"} & set(names), sorted(names)


def test_base_and_subclass_are_edited_together_and_then_one_of_them(folder: Path) -> None:
    source = (
        "class Base:\n    def f(self):\n        return 1\n\nclass Derived(Base):\n    def g(self):\n     "
        "   return super().f(), 1\n"
    )
    m = load(folder, source)
    base, derived, living = m.Base, m.Derived, m.Derived()
    edit(folder, source.replace("1", "2"))
    assert (
        living.g() == (2, 2)
        and isinstance(living, base)
        and m.Derived.__bases__ == (base,)
        and m.Derived is derived
    )
    edit(folder, source.replace("1", "2").replace("return 2\n\n", "return 3\n\n"))
    assert living.g() == m.Derived().g() == (3, 2)
    edit(
        folder,
        source.replace("class Derived(Base)", "class Middle(Base):\n    pass\n\nclass Derived(Middle)"),
    )
    assert isinstance(living, m.Middle) and isinstance(living, base) and living.g() == (1, 1)


def test_what_the_new_code_makes_is_of_the_one_class(folder: Path) -> None:
    source = (
        "class Net:\n    def f(self):\n        return 1\nNET = Net()\nNETS = [Net()]\ndef "
        "make(cls=Net):\n    return cls()\nclass Sub(Net):\n    pass\n"
    )
    m = load(folder, source)
    cls = m.Net
    edit(
        folder,
        source.replace("1", "2")
        .replace("Net()\n", "Net()  \n")
        .replace("NET = Net()", "NET = (Net())")
        .replace("[Net()]", "[Net(), Net()]"),
    )
    edit(
        folder,
        source.replace("1", "3")
        .replace("NET = Net()", "NET: Net = Net()")
        .replace("cls=Net", "cls=Net, x=1")
        .replace("    pass", "    y = 1"),
    )
    assert all(type(each) is cls for each in (m.NET, *m.NETS, m.make())) and issubclass(m.Sub, cls)
    assert [each.f() for each in (m.NET, *m.NETS, m.make(), m.Sub())] == [3] * 4


def test_whoever_holds_a_function_of_the_reload_itself_gets_new_code(folder: Path) -> None:
    """A tuple can't be given the old function; so the one that it holds runs the new code, too."""
    source = "def f():\n    return 1\nHOLDERS = (f,)\n"
    m = load(folder, source)
    edit(folder, source.replace("1", "2").replace("(f,)", "(f, f)"))
    assert [each() for each in m.HOLDERS] == [2, 2]
    edit(folder, source.replace("1", "3").replace("(f,)", "(f, f)"))
    assert [each() for each in (*m.HOLDERS, m.f)] == [3, 3, 3]


def test_a_file_that_is_a_link(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    for name in ("one", "two"):
        (shared / f"{name}.txt").write_text(f"a = '{name}'\n")
    (folder / "linked.py").symlink_to(shared / "one.txt")
    m: Any = importlib.import_module("linked")
    (shared / "one.txt").write_text("a = 'new'\n")
    assert only(reload_modules(changed_modules())).is_done and m.a == "new"
    (folder / "beside.py").symlink_to(shared / "two.txt")
    os.replace(folder / "beside.py", folder / "linked.py")
    assert only(reload_modules(changed_modules())).is_done and m.a == "two"
    (shared / "two.txt").write_text("a = 'last'\n")
    assert only(reload_modules(changed_modules())).is_done and m.a == "last"


def test_a_module_that_has_replaced_itself_is_named(folder: Path) -> None:
    load(folder, "import sys\nclass Lazy:\n    a = 1\nsys.modules[__name__] = Lazy()\n")
    result = edit(folder, "a = 2\n")
    assert "another object in its place" in result.trouble and "%mesh restart" in result.trouble


def test_objects_that_raise_from_everything(folder: Path) -> None:
    source = """
        class Hostile:
            def __getattribute__(self, name):
                raise RuntimeError("asked for " + name)
            def __eq__(self, other):
                raise RuntimeError("compared")
            __hash__ = None
        class Meta(type):
            def __setattr__(cls, name, value):
                raise RuntimeError("set")
        thing = Hostile()
        things = [Hostile()]
        table = {1: Hostile()}
        class Odd(metaclass=Meta):
            thing = Hostile()
            def f(self):
                return 1
        def g():
            return 1
        other = Hostile()
    """
    m = load(folder, source)
    odd, g = m.Odd(), m.g
    result = edit(
        folder, source.replace("return 1", "return 2").replace("other = Hostile()", "other = [Hostile()]")
    )
    assert odd.f() == g() == 2 and result.is_done, result


COMPILED = """
    import functools, torch

    def helper(x):
        return x * 1

    def deco(f):
        @functools.wraps(f)
        def inner(*args):
            return f(*args)
        return inner

    class Net(torch.nn.Module):
        def forward(self, x):
            return self.method(x) + helper(x) + self.static(x) + self.decorated(x) + self.value

        def method(self, x):
            return x * 2

        @staticmethod
        def static(x):
            return x * 3

        @deco
        def decorated(self, x):
            return x * 4

        @property
        def value(self):
            return 5
"""


def test_a_compiled_model_runs_the_new_code(folder: Path) -> None:
    """torch.compile keeps what it has made of a function, and of all that this calls: it has to notice
    that their code is another (pytorch #197860).
    """
    torch = pytest.importorskip("torch")
    m = load(folder, COMPILED)
    model = torch.compile(m.Net(), backend="eager")
    ones = torch.ones(1)
    assert model(ones).item() == 15
    source, wanted = COMPILED, 15
    for n in range(1, 6):
        word = f"return {n}" if n == 5 else f"x * {n}"
        source = source.replace(word, f"{word}0")
        wanted += 9 * n
        assert edit(folder, source).is_done and model(ones).item() == wanted, word
    edit(folder, source.replace("+ self.value", "- self.value"))
    assert model(ones).item() == 50


def test_many_edits_of_a_class_cost_no_more_than_a_few(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody holds is forgotten, though a class is in a circle; what somebody holds runs new code."""
    monkeypatch.setattr(reloading, "COLLECT_AT", 8)
    monkeypatch.setattr(reloading, "_stand_ins", {})  # other tests' classes are called so, too
    monkeypatch.setattr(reloading, "_collect_at", {})
    source = "class Net:\n    def f(self): return {}\n"
    mine = load(folder, source.format(0))
    held = []
    for n in range(1, 60):
        write(folder / "edited.py", source.format(n))
        reload_modules(changed_modules())
        if n % 20 == 0:  # as a table of the user's might
            stand_ins = reloading._stand_ins["edited", "Net"]
            held.append(next(found for each in stand_ins if (found := each()) is not None))
        assert len(reloading._stand_ins["edited", "Net"]) <= 2 * 8
    assert [kept().f() for kept in held] == [59] * len(held) == [mine.Net().f()] * len(held)
    assert len(held) == 2
