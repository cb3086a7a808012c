"""`%%mesh --profile`, `--memory` and `%mesh diff --env` in a real kernel."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernels import Notebook, Signal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def notebook(folder: Path) -> Iterator[Notebook]:
    opened = Notebook()
    opened.run(f"%load_ext monarch_nb\nimport os\nos.chdir({str(folder)!r})")
    assert "is ready" in opened.text("%mesh start measured --procs 3")
    opened.run("%%mesh\nimport torch\na = torch.ones(16, 16)")
    yield opened
    assert "has ended" in opened.text("%mesh stop measured")
    opened.close()


@pytest.fixture
def text(notebook: Notebook) -> Callable[[str], str]:
    return notebook.text


def trace_named_in(shown: str) -> set[str]:
    """Return the names of the processes in the trace that a cell's output names."""
    match = re.search(r"^trace of \[.*\]: (\S+)$", shown, re.MULTILINE)
    assert match, shown
    content = Path(match[1]).read_bytes()
    events = json.loads(gzip.decompress(content) if match[1].endswith(".gz") else content)["traceEvents"]
    used = {e["pid"] for e in events if e["name"] == "aten::mm"}
    return {
        e["args"]["name"].split(" (")[0] for e in events if e["name"] == "process_name" and e["pid"] in used
    }


def test_a_profile_is_shown_below_the_cell_and_lies_next_to_the_notebook(
    notebook: Notebook, folder: Path
) -> None:
    outputs = notebook.run("%%mesh --profile\nprint('hello')\nb = a @ a")
    shown = "\n".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in outputs)
    assert "[0-2] hello" in shown
    assert re.search(r"^aten::mm +1 +\S+", shown, re.MULTILINE)
    assert trace_named_in(shown) == {"rank 0", "rank 1", "rank 2"}
    (file,) = folder.glob("profile-*.json.gz")
    assert str(file) in shown
    assert any("aten::mm" in o.get("data", {}).get("text/html", "") for o in outputs)
    assert "profiler_start" not in shown


def test_printing_the_last_value_is_not_counted(text: Callable[[str], str]) -> None:
    text("%%mesh\nclass Costly:\n    def __repr__(self):\n        a @ a\n        return 'costly'")
    shown = text("%%mesh --profile=costly.json\na @ a\nCostly()")
    assert "[0-2] costly" in shown
    assert re.search(r"^aten::mm +1 +\S+", shown, re.MULTILINE), shown


def test_on_some_ranks_into_a_file_of_ones_own(text: Callable[[str], str], folder: Path) -> None:
    shown = text("%%mesh --profile=some.json --profile-ranks 1 --top 1 --output values\nb = a @ a\nrank")
    assert trace_named_in(shown) == {"rank 1"}
    assert (folder / "some.json").exists()
    assert text("print(list(values.values()))") == "[0, 1, 2]"


def test_a_failing_cell_shows_both(text: Callable[[str], str]) -> None:
    shown = text("%%mesh --profile\nb = a @ a\nif rank == 1: raise ValueError('broken')")
    assert trace_named_in(shown) == {"rank 0", "rank 1", "rank 2"}
    assert "ValueError: broken" in shown


def test_an_interrupted_cell_has_its_trace(notebook: Notebook, tmp_path: Path) -> None:
    ready = Signal(tmp_path / "ready")
    source = f"%%mesh --profile --ranks 0\nb = a @ a\n{ready.source}\nimport time; time.sleep(600)"
    shown = notebook.text_interrupted(source, ready.path)
    assert trace_named_in(shown) == {"rank 0"}
    assert "KeyboardInterrupt" in shown


def test_memory_names_the_line(text: Callable[[str], str]) -> None:
    shown = text("%%mesh --memory\nheld = None\nheld = [bytes(1000) for _ in range(3000)]")
    assert re.search(r"^In \[\d+\] line 2 +\[0-2\] +\d\.\d+ MiB", shown, re.MULTILINE), shown
    assert re.search(r"^resident ", shown, re.MULTILINE)
    assert "trace of" not in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--profile --async", "--async or a profile"),
        ("--profile --ranks 0 --profile-ranks 1", "doesn't run on [1]"),
        ("--profile --profile-ranks 7", "7"),
        ("--profile=trace.txt", ".json"),
        ("--profile-ranks 1", "go with --profile"),
        ("--profile --top none", "at least 1"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_nothing_runs(
    text: Callable[[str], str], line: str, message: str
) -> None:
    shown = text(f"%%mesh {line}\nran_anyway = True")
    assert message in shown
    assert shown.startswith("ERROR")
    assert "no rank has a variable ran_anyway" in text("%mesh vars ran_anyway")


def test_environments_that_differ(text: Callable[[str], str]) -> None:
    assert "run with the same" in text("%mesh diff --env")
    text("%%mesh\nimport os\nif rank == 1: os.environ['MODE'] = 'other'")
    shown = text("%mesh diff --env")
    assert re.search(r"^variables: MODE +\[0,2\] +not there\n +\[1\] +other$", shown, re.MULTILINE), shown
    assert "packages: torch" not in shown
    assert re.search(r"^packages: torch +\[0-2\] +\d", text("%mesh diff --env --all"), re.MULTILINE)
    assert "run with the same" in text("%mesh diff --env --ranks 0,2")


def test_diff_of_a_variable_goes_on_working(text: Callable[[str], str]) -> None:
    assert text("%mesh diff a") == "a is equal on all ranks"
    assert "needs a variable" in text("%mesh diff")
    assert "not both" in text("%mesh diff a --env")
