"""Tables keep their types on the way to ranks, and their rows are spread; each library's own test is
skipped where that isn't installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from own_meshes import own_mesh

from monarch_nb._wire import codec
from monarch_nb.actor import Actor, endpoint
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh import Mesh

NUM_ROWS = 400_000


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("tables", {"gpus": 3}) as found:
        yield found


def arrow_table() -> Any:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
    numbers = pyarrow.array(range(NUM_ROWS))
    words = pyarrow.array([f"w{i % 7}" for i in range(NUM_ROWS)]).dictionary_encode()
    return pyarrow.table({"number": numbers, "word": words, "half": numbers.cast("float32")})


def polars_frame() -> Any:
    polars = pytest.importorskip("polars", reason="polars isn't installed")
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
    return polars.DataFrame({
        "number": polars.int_range(NUM_ROWS, eager=True),
        "word": polars.Series([f"word {i % 7}" for i in range(NUM_ROWS)]),
        "kind": polars.Series(["a", "b"] * (NUM_ROWS // 2), dtype=polars.Enum(["a", "b"])),
        "day": polars.Series(range(NUM_ROWS), dtype=polars.Int32).cast(polars.Date),
        "small": polars.Series([None, 1] * (NUM_ROWS // 2), dtype=polars.UInt8),
    })  # fmt: skip


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas isn't installed")
    return pandas.DataFrame(
        {"number": range(NUM_ROWS), "word": pandas.Categorical(["a", "b"] * (NUM_ROWS // 2))},
        index=range(5, NUM_ROWS + 5),
    )


def travelled(value: Any) -> tuple[Any, codec.Encoded]:
    """Return a value as it arrives, and as it travels."""
    encoded = codec.encode(value)
    return codec.decode(encoded.payload, [memoryview(bytes(buffer)) for buffer in encoded.buffers]), encoded


def test_a_frame_of_polars_travels_beside_the_message_before_anybody_has_imported_arrow() -> None:
    polars_frame()
    program = (
        "import sys, polars\nfrom monarch_nb._wire import codec\n"
        "frame = polars.DataFrame({'a': range(100_000)})\nassert 'pyarrow' not in sys.modules\n"
        "print(sum(buffer.nbytes for buffer in codec.encode(frame).buffers))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ran.stdout.strip() == "800000", ran.stderr


def num_bytes(encoded: codec.Encoded) -> int:
    return len(encoded.payload) + sum(buffer.nbytes for buffer in encoded.buffers)


@pytest.mark.parametrize("made", [arrow_table, polars_frame, pandas_frame])
def test_tables_travel_as_buffers_and_keep_their_types(made: Any) -> None:
    table = made()
    found, encoded = travelled(table)
    assert type(found) is type(table) and found.equals(table)
    assert str(getattr(found, "schema", None)) == str(getattr(table, "schema", None))
    assert len(encoded.payload) < 1 << 20 < num_bytes(encoded)


def test_a_slice_takes_only_itself_along() -> None:
    table = arrow_table()
    part = table.slice(1000, NUM_ROWS // 4)
    found, encoded = travelled(part)
    assert found.equals(part) and found.schema == part.schema
    assert num_bytes(encoded) < 0.3 * table.nbytes
    batch = part.combine_chunks().to_batches()[0]
    assert travelled(batch)[0].equals(batch)
    frame = polars_frame()
    found, encoded = travelled(frame.slice(10, NUM_ROWS // 4))
    assert found.equals(frame.slice(10, NUM_ROWS // 4)) and num_bytes(encoded) < 0.4 * frame.estimated_size()
    assert (
        travelled(frame["kind"])[0].equals(frame["kind"])
        and travelled(frame["kind"])[0].dtype == frame["kind"].dtype
    )


def test_what_arrow_has_no_type_for_goes_as_it_did() -> None:
    polars = pytest.importorskip("polars", reason="polars isn't installed")
    frame = polars.DataFrame({"a": [[1, 2], [3]], "b": [{"x": 1}, {"x": 2}]})
    assert travelled(frame)[0].equals(frame)


@pytest.mark.parametrize(
    ("made", "columns"), [(arrow_table, "column_names"), (polars_frame, "columns"), (pandas_frame, "columns")]
)
def test_rows_are_scattered(mesh: Mesh, made: Any, columns: str) -> None:
    table = made()
    mesh.scatter("part", table)
    parts = list(mesh.pull("part").values())
    assert all(type(part) is type(table) for part in parts)
    assert [list(getattr(part, columns)) for part in parts] == [list(getattr(table, columns))] * 3
    assert [len(part) for part in parts] == [133_334, 133_333, 133_333]
    last = [
        getattr(last, "as_py", lambda last=last: last)()
        for last in (list(part["number"])[-1] for part in parts)
    ]
    assert last == [133_333, 266_666, 399_999]
    with pytest.raises(MeshUsageError, match=r"can't be split along dimension 1 .a table is split by rows"):
        mesh.scatter("part", table, dim=1)


def test_datasets_are_sharded(mesh: Mesh) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets isn't installed")
    whole = datasets.Dataset.from_dict({"x": list(range(10)), "s": [str(i) for i in range(10)]})
    mesh.scatter("shard", whole)
    mesh.run("xs = list(shard['x'])\nkind = type(shard).__name__, list(shard.features)", quiet=True)
    assert list(mesh.pull("xs").values()) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert set(mesh.pull("kind").map(str).values()) == {"('Dataset', ['x', 's'])"}


def test_a_relation_of_duckdb_becomes_arrow(mesh: Mesh) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb isn't installed")
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
    mesh.scatter("rows", duckdb.sql("select range as n, 'x' || range as s from range(5)"))
    mesh.run("ns = rows['n'].to_pylist(), rows.column_names", quiet=True)
    assert [ns for ns, _ in mesh.pull("ns").values()] == [[0, 1], [2, 3], [4]]


class Counter(Actor):
    @endpoint
    def count(self, rows: Any) -> tuple[str, list[int]]:
        return type(rows).__module__, rows["n"].to_pylist()


def test_a_relation_of_duckdb_can_be_an_argument(mesh: Mesh) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb isn't installed")
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
    relation = duckdb.sql("select range as n from range(3)")
    mesh.push({"whole": relation})
    mesh.run("ns = whole['n'].to_pylist()", quiet=True)
    assert list(mesh.pull("ns").values()) == [[0, 1, 2]] * 3
    counted = mesh.spawn("counter", Counter).count.call(relation).get(60)
    assert list(counted.values()) == [("pyarrow.lib", [0, 1, 2])] * 3


def test_what_has_no_parts_is_said(mesh: Mesh) -> None:
    with pytest.raises(MeshUsageError, match="scatter: x is a int, which can't be split"):
        mesh.scatter("x", 5)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_long_bytes_stay_what_they_are(mesh: Mesh, kind: type) -> None:
    value = kind(bytes(range(256)) * (1 << 13))
    mesh.push({"value": value, "short": kind(b"ab")})
    mesh.run("found = type(value).__name__, len(value), bytes(value[-2:]), type(short).__name__", quiet=True)
    assert set(mesh.pull("found").values()) == {(kind.__name__, len(value), b"\xfe\xff", kind.__name__)}
    assert list(mesh.pull("value").values()) == [value] * 3
