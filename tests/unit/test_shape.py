"""The algebra of grids."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._shape import Extent, RankSetError, Shape, format_ranks, parse_ranks
from monarch_nb.actor.value_mesh import ValueMesh

extents = st.lists(st.integers(1, 4), min_size=0, max_size=4).map(
    lambda sizes: Extent([f"d{i}" for i in range(len(sizes))], sizes)
)


@given(extents)
def test_points_and_ranks_are_one_to_one(extent: Extent) -> None:
    points = list(extent.points())
    assert [extent.rank_of(**p) for p in points] == list(range(extent.nelements))
    assert pickle.loads(pickle.dumps(points)) == points


@given(extents, st.data())
def test_slices_compose(extent: Extent, data: st.DataObject) -> None:
    shape = Shape.full(extent)
    if not extent.labels:
        return
    label = data.draw(st.sampled_from(extent.labels))
    size = extent[label]
    low = data.draw(st.integers(0, size - 1))
    high = data.draw(st.integers(low + 1, size))
    at = data.draw(st.integers(0, high - low - 1))
    assert shape.slice(**{label: slice(low, high)}).slice(**{label: at}) == shape.slice(**{label: low + at})


@given(extents)
def test_flatten_and_split_invert(extent: Extent) -> None:
    shape = Shape.full(extent)
    flat = shape.flatten("all")
    assert flat.ranks == shape.ranks
    if extent.labels:
        sizes = dict(list(extent.items())[1:])
        assert flat.split(all=tuple(extent.labels), **sizes) == shape


def test_errors_name_dimension_and_range() -> None:
    shape = Shape.full(Extent(["hosts", "gpus"], [2, 4]))
    with pytest.raises(IndexError, match=r"gpus=4 is out of range: gpus has size 4 \(0 to 3\)"):
        shape.slice(gpus=4)
    with pytest.raises(KeyError, match=r"no dimension 'gpu'; this mesh has hosts=2, gpus=4"):
        shape.slice(gpu=0)
    with pytest.raises(ValueError, match="can't be split"):
        shape.split(gpus=("a", "b"), a=3)
    with pytest.raises(ValueError, match="at least 1"):
        Extent(["a"], [0])
    with pytest.raises(TypeError, match="must be an int"):
        Extent(["a"], [True])
    with pytest.raises(ValueError, match="identifier"):
        Extent(["a b"], [1])


selections = (
    st.none() | st.integers(0, 3) | st.builds(slice, st.integers(0, 2), st.integers(1, 4), st.integers(1, 3))
)


@given(extents, st.data())
def test_a_slice_holds_the_ranks_at_its_coordinates(extent: Extent, data: st.DataObject) -> None:
    drawn = {label: data.draw(selections) for label in extent.labels}
    picks = {k: v if isinstance(v, int) else v or slice(None) for k, v in drawn.items()}
    try:
        part = Shape.full(extent).slice(**picks)
    except IndexError as error:
        label = str(error).partition("=")[0]
        assert not _chosen(picks[label], extent[label])
        return
    expected = [
        p.rank for p in extent.points() if all(p[k] in _chosen(v, extent[k]) for k, v in picks.items())
    ]
    assert list(part.ranks) == expected
    assert part.extent.labels == tuple(k for k, v in picks.items() if isinstance(v, slice))


def _chosen(pick: int | slice, size: int) -> list[int]:
    if isinstance(pick, slice):
        return list(range(size)[pick])
    return [pick] if pick < size else []


@given(extents)
def test_renaming_there_and_back(extent: Extent) -> None:
    shape = Shape.full(extent)
    there = {label: f"new_{label}" for label in extent.labels}
    renamed = shape.rename(**there)
    assert renamed.extent.labels == tuple(there.values())
    assert renamed.rename(**{new: old for old, new in there.items()}) == shape


@given(extents)
def test_sizes_multiply(extent: Extent) -> None:
    shape = Shape.full(extent)
    assert shape.size() == len(shape) == extent.nelements
    assert shape.size(list(extent.labels)[:1]) * shape.size(list(extent.labels)[1:]) == shape.size()


def test_a_split_refuses_what_it_would_not_use() -> None:
    shape = Shape.full(Extent(["hosts", "gpus"], [2, 4]))
    with pytest.raises(KeyError, match=r"\['gpus'\] is not among the new dimensions \[\]"):
        shape.split(gpus=2)
    with pytest.raises(KeyError, match=r"\['hosts'\] is not among the new dimensions \['dp', 'tp'\]"):
        shape.split(gpus=("dp", "tp"), tp=2, hosts=1)
    with pytest.raises(TypeError, match="gpus is split into a sequence of names"):
        shape.split(gpus="dp")
    with pytest.raises(ValueError, match=r"a size for all but one of \['dp', 'tp'\]"):
        shape.split(gpus=("dp", "tp"))
    with pytest.raises(ValueError, match="must have different names"):
        shape.split(gpus=("hosts", "tp"), tp=2)


def test_a_point_names_its_range() -> None:
    extent = Extent(["hosts", "gpus"], [2, 4])
    with pytest.raises(IndexError, match=r"rank 8 is out of range: the extent hosts=2, gpus=4 has ranks 0-7"):
        extent.point(8)
    with pytest.raises(IndexError, match=r"gpus=4 is out of range: gpus has size 4"):
        extent.rank_of(hosts=0, gpus=4)
    with pytest.raises(KeyError, match="a coordinate for each of"):
        extent.rank_of(hosts=0)


GRID = Extent(["hosts", "gpus"], [2, 8])


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", range(16)),
        ("3", [3]),
        ("-1", [15]),
        ("0-3,7", [0, 1, 2, 3, 7]),
        ("::2", range(0, 16, 2)),
        ("2:7:2", [2, 4, 6]),
        ("hosts=0,gpus=2:8", range(2, 8)),
        ("hosts=1,gpus=(1,3)", [9, 11]),
        ("ranks(1,4)", [1, 4]),
        ("ranks( hosts = 0 , gpus = 0-1 )", [0, 1]),
    ],
)
def test_rank_grammar(text: str, ranks: list[int]) -> None:
    assert parse_ranks(text, GRID) == tuple(ranks)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "nothing is given"),
        ("16", "rank 16 is out of range"),
        ("3-1", "counts down"),
        ("gpu=1", "no dimension 'gpu'"),
        ("hosts=0,hosts=1", "given twice"),
        ("__import__('os')", "neither a number"),
        ("1;2", "neither a number"),
        ("5:5", "picks nothing"),
        ("::0", "step of 0"),
    ],
)
def test_rank_set_errors_say_what_to_type(text: str, says: str) -> None:
    with pytest.raises(RankSetError, match=says) as caught:
        parse_ranks(text, GRID)
    assert "This mesh has ranks 0-15 (hosts=2, gpus=8)" in str(caught.value)


@given(st.sets(st.integers(0, 15), min_size=1))
def test_format_and_parse_invert(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks), GRID) == tuple(sorted(ranks))


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        ranks = parse_ranks(text, GRID)
    except RankSetError:
        return
    assert all(0 <= r < 16 for r in ranks)


def grid_of(values: list[object]) -> ValueMesh[object]:
    return ValueMesh(Shape.full(Extent(["gpus"], [len(values)])), values)


def test_value_mesh_access() -> None:
    mesh = grid_of([5, 6, 7])
    assert [(p["gpus"], v) for p, v in mesh] == [(0, 5), (1, 6), (2, 7)]
    assert (mesh[1], mesh[-1], mesh.item(gpus=0)) == (6, 7, 5)
    assert list(mesh.slice(gpus=slice(1, 3)).values()) == [6, 7]
    assert mesh.map(lambda v: v * 2) == grid_of([10, 12, 14])
    with pytest.raises(IndexError, match="rank 3 is out of range: there are 3 values"):
        mesh[3]
    with pytest.raises(ValueError, match=r"3 values .*\.item\(gpus=0\)"):
        mesh.item()


def test_value_mesh_reduces() -> None:
    mesh = grid_of([1.0, 2.0, 6.0])
    assert [mesh.reduce(how) for how in ("sum", "mean", "min", "max")] == [9.0, 3.0, 1.0, 6.0]
    assert mesh.reduce(lambda a, b: a * b) == 12.0
    with pytest.raises(ValueError, match=r"the values differ: \[0-1\] 1; \[2\] 2"):
        grid_of([1, 1, 2]).reduce("equal")
    with pytest.raises(ValueError, match="one of sum, mean"):
        mesh.reduce("median")


def test_value_mesh_compares_tensors_as_wholes() -> None:
    torch = pytest.importorskip("torch")
    mesh = grid_of([torch.ones(2), torch.ones(2), torch.zeros(2)])
    assert [ranks for ranks, _ in mesh.folded()] == [(0, 1), (2,)]


def test_value_mesh_is_shown_folded_and_escaped() -> None:
    mesh = grid_of(["<b>", "<b>", "c"])
    assert repr(mesh) == "ValueMesh(gpus=3): [0-1] '<b>'; [2] 'c'"
    assert "&lt;b&gt;" in mesh._repr_html_()
    assert "<b>" not in mesh._repr_html_()


def test_value_mesh_to_pandas() -> None:
    pytest.importorskip("pandas")
    frame = grid_of([{"loss": 1}, {"loss": 2}]).to_pandas()
    assert list(frame.columns) == ["gpus", "loss"]
    assert list(frame["loss"]) == [1, 2]
