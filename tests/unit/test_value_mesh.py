"""Values of a mesh: when two count as the same, and how the mesh' algebra acts on them. (First steps:
test_shape.py.)
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._shape import Extent, Shape
from monarch_nb.actor.value_mesh import ValueMesh, same

NAN = float("nan")


def grid(hosts: int, gpus: int) -> ValueMesh[int]:
    return ValueMesh(Shape.full(Extent(["hosts", "gpus"], [hosts, gpus])), range(hosts * gpus))


def row(*values: Any) -> ValueMesh[Any]:
    return ValueMesh(Shape.full(Extent(["gpus"], [len(values)])), values)


@given(st.integers(1, 3), st.integers(1, 4), st.data())
def test_slices_take_their_values_along(hosts: int, gpus: int, data: st.DataObject) -> None:
    mesh = grid(hosts, gpus)
    host = data.draw(st.integers(0, hosts - 1))
    step = data.draw(st.integers(1, gpus))
    part = mesh.slice(hosts=host, gpus=slice(None, None, step))
    assert list(part.values()) == [host * gpus + g for g in range(0, gpus, step)]
    assert [part[p] for p in part.extent.points()] == list(part.values())
    assert [mesh.item(hosts=host, gpus=p["gpus"] * step) for p, _ in part] == list(part.values())


@given(st.integers(1, 3), st.integers(1, 4))
def test_rearranging_loses_nothing(hosts: int, gpus: int) -> None:
    mesh = grid(hosts, gpus)
    flat = mesh.flatten("rank")
    assert list(flat.values()) == list(mesh.values())
    assert flat.split(rank=("hosts", "gpus"), gpus=gpus) == mesh
    assert mesh.rename(gpus="g").sizes == {"hosts": hosts, "g": gpus}


def test_slices_of_slices_keep_their_values() -> None:
    part = grid(2, 4).slice(gpus=slice(1, 4)).slice(gpus=slice(1, 3), hosts=1)
    assert list(part.values()) == [6, 7]


def test_as_many_values_as_points() -> None:
    with pytest.raises(ValueError, match=r"3 values for 2 points \(gpus=2\)"):
        ValueMesh(Shape.full(Extent(["gpus"], [2])), [1, 2, 3])


def test_only_ranks_and_points_are_subscripts() -> None:
    for wrong in (True, "0", slice(0, 1)):
        with pytest.raises(
            TypeError, match=r"expected a rank or a point, not \w+; use \.slice\(\) for parts"
        ):
            row(1, 2)[wrong]  # type: ignore[index]


def test_nan_is_folded_and_is_no_difference() -> None:
    assert [ranks for ranks, _ in row(NAN, float("nan"), 1.0).folded()] == [(0, 1), (2,)]
    assert row(NAN, float("nan")).reduce("equal") != 0
    assert same({"loss": [NAN]}, {"loss": [float("nan")]})


@pytest.mark.parametrize(
    ("a", "b"), [(1, True), (1, 1.0), ([1], (1,)), ({"a": 1}, {"b": 1}), ([1], [1, 2]), (NAN, 0.0)]
)
def test_what_looks_different_is_not_the_same(a: object, b: object) -> None:
    assert not same(a, b)
    assert not same(b, a)


def test_arrays_are_compared_as_wholes() -> None:
    numpy = pytest.importorskip("numpy")
    assert same(numpy.array([1.0, NAN]), numpy.array([1.0, NAN]))
    assert same(numpy.array(["a"]), numpy.array(["a"]))
    assert same(numpy.float64(NAN), numpy.float64(NAN))
    assert not same(numpy.zeros(2), numpy.zeros(3))
    assert not same(numpy.zeros((2, 1)), numpy.zeros((1, 2)))
    assert not same(numpy.zeros(2, "int32"), numpy.zeros(2, "int64"))
    assert not same(numpy.array([1.0, NAN]), numpy.array([NAN, 1.0]))


def test_tensors_are_compared_as_wholes() -> None:
    torch = pytest.importorskip("torch")
    assert same(torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]))
    assert same(torch.tensor([True]), torch.tensor([True]))
    assert not same(torch.tensor([1.0, NAN]), torch.tensor([NAN, 1.0]))
    assert not same(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not same(torch.zeros(2), torch.zeros(1))


def test_tables_are_compared_as_wholes() -> None:
    pandas = pytest.importorskip("pandas")
    assert same(pandas.DataFrame({"a": [1.0, NAN]}), pandas.DataFrame({"a": [1.0, NAN]}))
    assert not same(pandas.DataFrame({"a": [1]}), pandas.DataFrame({"b": [1]}))
    assert not same(pandas.DataFrame({"a": [1]}), pandas.DataFrame({"a": [2]}))


def test_an_eq_that_raises_is_unequal() -> None:
    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    assert not same(Stubborn(), Stubborn())


def test_long_meshes_are_shown_short() -> None:
    text = repr(row(*range(25)))
    assert text.startswith("ValueMesh(gpus=25): [0] 0; [1] 1; ")
    assert text.endswith("[19] 19; ... 5 more")
    assert len(repr(row("x" * 1000))) < 200
    assert "5 more distinct values" in row(*range(25))._repr_html_()


def test_pickles() -> None:
    mesh = grid(2, 2).slice(hosts=1)
    assert pickle.loads(pickle.dumps(mesh)) == mesh
