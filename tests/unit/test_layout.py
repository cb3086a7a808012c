"""Layouts against numpy: whatever is sliced, the runs are where numpy has the elements."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma.box import Box
from monarch_nb.rdma.layout import Layout, pieces

_SLICES = st.builds(
    slice, st.none() | st.integers(-6, 6), st.none() | st.integers(-6, 6), st.none() | st.integers(1, 3)
)


@st.composite
def _views(draw: st.DrawFn) -> tuple[numpy.ndarray, numpy.ndarray, Layout]:
    """An array, a view of it, and the view's layout."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    whole = numpy.arange(int(numpy.prod(shape)), dtype=numpy.int32).reshape(shape)
    index = tuple(draw(_SLICES | st.integers(-n, n - 1)) for n in shape[: draw(st.integers(0, len(shape)))])
    return whole, whole[index], Layout.contiguous(shape, 4)[index]


@given(_views())
def test_parts_are_where_numpy_has_them(case: tuple[numpy.ndarray, numpy.ndarray, Layout]) -> None:
    whole, view, layout = case
    assert layout.shape == view.shape
    assert layout.nbytes == view.nbytes
    assert layout.is_contiguous == (view.size == 0 or view.flags.c_contiguous)
    raw = whole.tobytes()
    runs = layout.runs()
    assert b"".join(raw[s : s + runs.nbytes] for s in runs.starts) == view.tobytes()
    low, high = layout.span
    assert all(low <= s and s + runs.nbytes <= high for s in runs.starts)


@given(_views(), _views())
def test_pieces_carry_one_view_into_another(
    a: tuple[numpy.ndarray, numpy.ndarray, Layout], b: tuple[numpy.ndarray, numpy.ndarray, Layout]
) -> None:
    if a[2].nbytes != b[2].nbytes:
        return
    source, target = a[0].tobytes(), bytearray(b[0].nbytes)
    for there, here, n in pieces(a[2], b[2]):
        target[here : here + n] = source[there : there + n]
    runs = b[2].runs()
    assert b"".join(bytes(target[s : s + runs.nbytes]) for s in runs.starts) == a[1].tobytes()


def test_negative_strides_have_a_span() -> None:
    assert Layout((4,), (-2,), 2).span == (-6, 2)
    assert Layout((4,), (-2,), 2).moved(6).runs().starts == [6, 4, 2, 0]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("x", "not by a str"),
        (5, "out of range"),
        ((0, 0), "2 indices for 1 dimensions"),
        ((..., ...), "once"),
    ],
)
def test_what_is_no_index_says_so(index: object, message: str) -> None:
    with pytest.raises(MeshUsageError, match=message):
        Layout.contiguous((5,), 1)[index]


@given(st.data())
def test_boxes_cover_what_is_left(data: st.DataObject) -> None:
    start = [data.draw(st.integers(0, 4)) for _ in range(2)]
    shape = [data.draw(st.integers(1, 4)) for _ in range(2)]
    box = Box((0, 0), (6, 6))
    part = box.overlap(Box(tuple(start), tuple(shape)))
    if part.is_empty:
        return
    count = numpy.zeros((6, 6), int)
    for one in [part, *box.without(part)]:
        count[one.within(box)] += 1
    assert (count == 1).all()
