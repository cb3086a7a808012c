"""Every operation that PyTorch describes for its own tests (OpInfo), on a mesh beside one process.

`operations.toml` names those that are computed from gathered inputs, and those that can't be done. It may
only shrink: an operation that needs a line which isn't there fails, and so does a line that isn't needed.
"""

from __future__ import annotations

import math
import os
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import monarch_nb
from monarch_nb.distributed import Mesh

pytest.importorskip("expecttest", reason="torch.testing's OpInfo needs expecttest")

TABLE = tomllib.loads(Path(__file__).with_name("operations.toml").read_text())
IS_FULL = os.environ.get("MONARCH_NB_HOSTILE") == "full"
NUM_SAMPLES = 20 if IS_FULL else 2
NUM_PARTS = 8
EVEN = {"S": 4, "M": 8, "XS": 2}
"""Sizes of samples in place of torch's odd ones: parts are equally long, and other rules apply."""
SPECS: list[list[Any]] = [["data_parallel"]]
if IS_FULL:
    SPECS += [[("data_parallel", "model_parallel")], [None, "model_parallel"]]


def operations() -> dict[str, Any]:
    """Return what is tested, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {
        ".".join(filter(None, (op.name, op.variant_test_name))): op
        for op in op_db
        if torch.float32 in op.supported_dtypes("cpu") and "jiterator" not in op.name
    }


def samples(op: Any) -> list[Any]:
    """Return samples that have something to distribute."""
    found: list[Any] = []
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False):
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        if any(isinstance(x, torch.Tensor) and x.dim() and x.numel() > 1 for x in leaves):
            found.append(sample)
        if len(found) == NUM_SAMPLES:
            break
    return found


def run(op: Any, sample: Any, place: Any) -> list[Any]:
    given = pytree.tree_map(place, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    return pytree.tree_leaves(op(given[0], *given[1], **given[2]))


def difference(found: Sequence[Any], wanted: Sequence[Any], *, by_chance: bool) -> str:
    """Say in what results differ."""
    if len(found) != len(wanted):
        return f"{len(found)} results for {len(wanted)}"
    for one, other in zip(found, wanted, strict=True):
        if not isinstance(other, torch.Tensor):
            if one != other and not (other != other and math.isnan(one)):
                return f"{one!r} for {other!r}"
            continue
        one = one.full() if isinstance(one, monarch_nb.Tensor) else one
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{tuple(one.shape)} of {one.dtype} for {tuple(other.shape)} of {other.dtype}"
        if not by_chance and not torch.allclose(one, other, atol=1e-5, rtol=1e-4, equal_nan=True):
            return "other numbers"
    return ""


def drops(sample: Any) -> bool:
    """Say whether a sample drops elements by chance."""
    return bool(sample.kwargs.get("dropout_p") or (sample.kwargs.get("training") and sample.kwargs.get("p")))


def outcome(mesh: Mesh, name: str, op: Any, sample: Any, spec: list[Any]) -> str:
    """Return "" if the mesh computes what one process does, "gathers" if from whole inputs, or what went
    wrong.
    """

    def place(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        fits = x.dim() >= len(spec) and x.numel()
        return monarch_nb.distribute(x.detach().clone(), mesh, spec if fits else [])

    engine = mesh.tensor_grid().engine
    engine._warned_of.clear()  # said once of each operation, and only of one that's new
    engine.plans.clear()
    try:
        wanted = run(op, sample, lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x)
    except (IndexError, RuntimeError):  # a sample that counts on other sizes
        return ""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            by_chance = name in TABLE["by_chance"] or drops(sample)
            wrong = difference(run(op, sample, place), wanted, by_chance=by_chance)
        except Exception as error:  # whatever it is, it's shown beside the operation's name
            return f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return wrong or ("gathers" if any("can't be done on shards" in str(w.message) for w in seen) else "")


@pytest.fixture(scope="module", params=["2x2", "2"])
def any_mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """The mesh of all tests here, and in the long form a line of two, too."""
    if request.param == "2x2":
        yield request.getfixturevalue("mesh")
    elif IS_FULL:
        with Mesh(shape=(2, 1), mesh_dim_names=("data_parallel", "model_parallel")) as found:
            yield found
    else:
        pytest.skip("in the long form only: MONARCH_NB_HOSTILE=full")


@pytest.fixture
def no_test_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare samples the search for the `unittest.TestCase` that wants them: there is none, and to read the
    source of all frames for that takes half the time.
    """
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    for module in (common_utils, core):
        monkeypatch.setattr(module, "extract_test_fn", lambda: None)


@pytest.fixture(params=["odd", "even"])
def any_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Odd sizes of samples, as torch's are, and in the long form even ones, too."""
    if request.param == "even":
        if not IS_FULL:
            pytest.skip("in the long form only: MONARCH_NB_HOSTILE=full")
        operations()
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.testing._internal"):
                for constant in EVEN.keys() & vars(module).keys():
                    monkeypatch.setattr(module, constant, EVEN[constant])
    return str(request.param)


@pytest.mark.usefixtures("no_test_case")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_operations_are_those_of_one_process(any_mesh: Mesh, any_sizes: str, part: int) -> None:
    wrong, gathers, fails = {}, set(), set()
    mine = list(operations().items())[part::NUM_PARTS]
    for name, op in mine:
        try:
            given = samples(op)
        except RuntimeError:
            assert any_sizes == "even"  # some count on torch's sizes
            continue
        seen = {outcome(any_mesh, name, op, each, spec) for each in given for spec in SPECS} - {""}
        if "gathers" in seen:
            gathers.add(name)
        if seen - {"gathers"}:
            fails.add(name)
        unexpected = seen - ({"gathers"} if name in TABLE["gathers"] else set())
        if unexpected and name not in TABLE["fails"]:
            wrong[name] = " / ".join(sorted(unexpected))
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    if not IS_FULL:  # the table is of this form's samples
        names = {name for name, _ in mine}
        assert (set(TABLE["gathers"]) & names) - gathers == set(), (
            "take these out of the table: they shard now"
        )
        assert (set(TABLE["fails"]) & names) - fails == set(), "take these out of the table: they work now"


def gradients(op: Any, sample: Any, place: Any) -> list[Any]:
    """Return the gradients of what has some, of a sum in which each element counts differently."""
    given = pytree.tree_map(place, (sample.input, sample.args, sample.kwargs))
    leaves = [x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for each in leaves:
        each.requires_grad_()
    torch.manual_seed(0)
    found = pytree.tree_leaves(op(given[0], *given[1], **given[2]))
    results = [x for x in found if isinstance(x, torch.Tensor) and x.is_floating_point() and x.requires_grad]
    weighted = [x * (torch.arange(x.numel()).reshape(x.shape) % 7 + 1) for x in results]
    if weighted:
        torch.stack([each.sum() for each in weighted]).sum().backward()
    return [x.grad for x in leaves if x.grad is not None]


@pytest.mark.skipif(not IS_FULL, reason="in the long form only: MONARCH_NB_HOSTILE=full")
@pytest.mark.usefixtures("no_test_case", "any_sizes")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_gradients_are_those_of_one_process(any_mesh: Mesh, part: int) -> None:
    left_out = {*TABLE["fails"], *TABLE["by_chance"], *TABLE["gradients_fail"]}
    wrong = {}
    for name, op in list(operations().items())[part::NUM_PARTS]:
        if name in left_out or not op.supports_autograd:
            continue
        with suppress(RuntimeError):  # samples that count on other sizes
            seen = {
                gradient_outcome(any_mesh, op, each, spec) for each in samples(op)[:6] for spec in SPECS
            } - {""}
            if seen:
                wrong[name] = " / ".join(sorted(seen))
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


def gradient_outcome(mesh: Mesh, op: Any, sample: Any, spec: list[Any]) -> str:
    """Return "" if gradients are those of one process, or what went wrong."""

    def place(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        fits = x.dim() >= len(spec) and x.numel()
        return monarch_nb.distribute(x.detach().clone(), mesh, spec if fits else [])

    try:
        wanted = gradients(op, sample, lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x)
    except (IndexError, RuntimeError):  # one process can't, either
        return ""
    try:
        return difference(gradients(op, sample, place), wanted, by_chance=drops(sample))
    except Exception as error:  # whatever it is, it's shown beside the operation's name
        return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def test_the_table_names_operations_that_there_are() -> None:
    assert {name for names in TABLE.values() for name in names} <= set(operations())
