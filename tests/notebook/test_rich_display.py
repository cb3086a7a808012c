"""What ranks display: drawn by the front end itself where that's its own, updated in place, cleared; bars
of many ranks are one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernels import FileLatch, Notebook, RawKernel, shown


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.text(f"%mesh start rich{uuid.uuid4().hex[:6]} --gpus 3")
    opened.run("%%mesh\nfrom IPython.display import *")
    yield opened
    assert "has ended" in opened.text("%mesh stop")
    opened.close()


@pytest.fixture
def run(notebook: Notebook) -> Callable[[str], list[Any]]:
    return lambda source: notebook.run(f"%%mesh\n{source}")


@pytest.fixture
def show(notebook: Notebook) -> Callable[[str], str]:
    return lambda source: notebook.text(f"%%mesh\n{source}")


@pytest.mark.parametrize(
    ("source", "mime", "data", "text"),
    [
        ("Markdown('# Title')", "text/markdown", "# Title", "# Title"),
        ("Latex('$x^2$')", "text/latex", "$x^2$", "$x^2$"),
        ("Math('x^2')", "text/latex", "$\\displaystyle x^2$", "$\\displaystyle x^2$"),
        ("JSON({'a': [1]})", "application/json", {"a": [1]}, '{\n "a": [\n  1\n ]\n}'),
        ("Javascript('1')", "application/javascript", "1", "1"),
        (
            "GeoJSON({'type': 'Point'})",
            "application/geo+json",
            {"type": "Point"},
            "<IPython.display.GeoJSON object>",
        ),
    ],
)
def test_the_front_end_draws_what_is_its_own(
    run: Callable[[str], list[Any]], source: str, mime: str, data: Any, text: str
) -> None:
    for statement in (f"display({source})", source):  # shown, and as the value of the cell
        label, output = run(statement)
        assert label.data["text/plain"] == "ranks 0-2:" and "ranks 0-2" in label.data["text/html"]
        assert output.data[mime] == data and output.data["text/plain"] == text


@pytest.mark.parametrize("mime", ["application/vnd.plotly.v1+json", "application/vnd.vegalite.v5+json"])
def test_plots_go_with_the_text_of_the_cell(run: Callable[[str], list[Any]], mime: str) -> None:
    outputs = run(
        f"print('before')\ndisplay({{{mime!r}: {{'rank': rank // 2}}, 'text/html': '<p>', "
        "'text/plain': 'plot'}, raw=True)"
    )
    assert shown(outputs) == "[0-2] before\nranks 0-1:\nplot\nrank 2:\nplot"
    assert [o.data[mime] for o in outputs if mime in o.data] == [{"rank": 0}, {"rank": 1}]


def test_text_and_displays_stand_in_the_order_in_which_they_came(run: Callable[[str], list[Any]]) -> None:
    outputs = run(
        "print('one', end='')\ndisplay(Markdown('# Two'))\nprint('three')\n"
        "display(HTML(f'<i>four {rank // 2}</i>'))\nprint('five')\ndisplay(Latex(f'$six_{rank // 2}$'))\n"
        "print('seven')\nHTML('<i>eight</i>')"
    )
    kinds = [[word for word in ("markdown", "latex") if f"text/{word}" in o.data] for o in outputs]
    assert kinds == [[], ["markdown"], [], ["latex"], [], ["latex"], []]
    page = "<IPython.core.display.HTML object>"
    assert shown(outputs).splitlines() == [
        *("[0-2] one", "ranks 0-2:", "# Two", "[0-2] three", f"[0-1] {page}", f"[2] {page}", "[0-2] five"),
        *("ranks 0-1:", "$six_0$", "rank 2:", "$six_1$", "[0-2] seven", f"[0-2] {page}"),
    ]
    html = outputs[2].data["text/html"]
    places = [html.index(word) for word in ("three", "<i>four 0", "<i>four 1", "five", "ranks 0-1</div>")]
    assert places == sorted(places)
    assert "<i>eight" in outputs[-1].data["text/html"]


def test_what_is_printed_and_drawn_in_a_loop_takes_turns(show: Callable[[str], str]) -> None:
    text = show("for i in range(40):\n    print('model', i)\n    display(Markdown(f'plot {i}'))\nNone")
    drawn = [f"[0-2] model {i}\nranks 0-2:\nplot {i}\n" for i in range(24)]
    assert text == "".join(drawn) + "\n".join(
        line for i in range(24, 40) for line in (f"[0-2] model {i}", f"[0-2] plot {i}")
    )


def test_a_rank_that_lags_is_shown_in_order_too(tmp_path: Path) -> None:
    """Outputs can't be inserted: what comes late moves those behind it on."""
    kernel = RawKernel()
    kernel.run("%load_ext monarch_nb\n%mesh start lagging --procs 2")
    gate = FileLatch(tmp_path / "gate")
    wait = gate.source.replace("\n", "\n        ")
    cell = kernel.start(
        "%%mesh\nfrom IPython.display import *\nfor i in range(3):\n    if i == 1 and rank == 1:\n"
        f"        {wait}\n    print('step', i)\n    display(Markdown(f'plot {{i}} of {{rank}}'))\n"
        "print('end')"
    )
    kernel.wait_for(cell, "plot 2 of 0\n[0] end")
    gate.open()
    kernel.finish(cell)
    text = kernel.text(cell).rstrip("\n")
    assert [line for line in text.splitlines() if line and not line.startswith("time: ")] == [
        *(
            line
            for i in range(3)
            for line in (*(f"[0-1] step {i}", "rank 0:", f"plot {i} of 0"), *("rank 1:", f"plot {i} of 1"))
        ),
        "[0-1] end",
    ]
    kernel.run("%mesh stop lagging")
    kernel.close()


def test_a_display_between_many_lines_is_not_hidden(run: Callable[[str], list[Any]]) -> None:
    outputs = run(
        "for i in range(5000):\n    print(i)\n"
        "    if i == 2500: display(HTML('<i>here</i>'), Markdown('drawn'))"
    )
    texts = [output.data["text/plain"] for output in outputs]
    assert [text.splitlines()[0] for text in texts] == ["[0-2] 0", "drawn", "[0-2] 4500"]
    assert texts[0].splitlines()[-3:-1] == [
        "... 4,000 lines not shown; all of them: %mesh logs",
        "[0-2] <IPython.core.display.HTML object>",
    ]
    assert "<i>here" in outputs[0].data["text/html"]


def test_a_replay_has_the_same_order(notebook: Notebook, tmp_path: Path) -> None:
    source = "%%mesh --async\nprint('one')\ndisplay(Markdown('two'))\nprint('three')\n'four'"
    notebook.run(source)
    text = "[0-2] one\nranks 0-2:\ntwo\n[0-2] three\n[0-2] 'four'"
    assert notebook.text("%mesh result") == text
    notebook.run("%%mesh\nprint('before', end='')\ndisplay('shown')\nprint('after')")
    assert notebook.text("%mesh logs").endswith("[0-2] before\n[0-2] 'shown'\n[0-2] after")
    file = tmp_path / "exported.ipynb"
    notebook.run(f"%mesh export {file}")
    cell = next(c for c in reversed(nbformat.read(file, as_version=4).cells) if "'four'" in c.source)
    assert shown(cell.outputs) == text


def test_plots_whose_ids_were_drawn_are_one(show: Callable[[str], str]) -> None:
    """As plotly and altair make them: each rank's page has another id."""
    figure = "import uuid\nfor same in (uuid.uuid4(), uuid.uuid4().hex):\n"
    page = '    display(HTML(f\'<div id="fig-{same}"></div><script>draw("fig-{same}", %s)</script>\'))'
    assert show(figure + page % 1).count("[0-2]") == 2
    assert "[0-2]" not in show(figure + page % "{rank}")


def test_pages_and_images_stay_in_the_page(run: Callable[[str], list[Any]]) -> None:
    (output,) = run("display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))\nHTML('<b>bold</b>')")
    assert "<svg" in output.data["text/html"] and "<b>bold</b>" in output.data["text/html"]


def test_updates_stay_in_place_also_from_later_cells(notebook: Notebook, show: Callable[[str], str]) -> None:
    assert (
        show("handle = display('one', display_id='here')\nprint('behind')\nhandle.update('two')")
        == "[0-2] 'two'\n[0-2] behind"
    )
    assert (
        show("md = display(Markdown(f'v1'), display_id=True)\nmd.update(Markdown('v2'))") == "ranks 0-2:\nv2"
    )


def test_an_update_of_a_later_cell_goes_to_the_first() -> None:
    kernel = RawKernel()
    kernel.run("%load_ext monarch_nb\n%mesh start updated --procs 2")
    first = kernel.run(
        "%%mesh\nfrom IPython.display import display, update_display\ndisplay('one', display_id='x')\nNone"
    )
    second = kernel.run("%%mesh\nupdate_display('two', display_id='x')\nprint('later')")
    kernel.wait_for(first, "[0-1] 'two'")
    assert kernel.text(second) == "[0-1] later"
    kernel.run("%mesh stop updated")
    kernel.close()


def test_what_is_cleared_is_gone(show: Callable[[str], str]) -> None:
    assert show(
        "for i in range(5):\n    clear_output(wait=True)\n    print('step', i)\n    "
        "display(HTML(f'<i>{i}</i>'))"
    ).startswith("[0-2] step 4\n[0-2] <")
    assert show(
        "for i in range(3):\n    clear_output(wait=True)\n    print('step', i)\n    "
        "display(Markdown(f'plot {i}'))\n    print('behind')"
    ) == ("[0-2] step 2\nranks 0-2:\nplot 2\n[0-2] behind")
    assert show("print('a')\nif rank == 1: clear_output()\nprint('b')") == "[0,2] a\n[0-2] b"
    assert show("print('last')\nclear_output(wait=True)") == "[0-2] last"


def test_rich_has_colours(run: Callable[[str], list[Any]]) -> None:
    (output,) = run("import rich\nrich.print('[red]danger[/red]')")
    assert output.data["text/plain"] == "[0-2] danger"
    assert "ansi-red-fg" in output.data["text/html"]


@pytest.mark.parametrize("module", ["tqdm", "tqdm.auto", "tqdm.notebook"])
def test_bars_of_all_ranks_are_one(notebook: Notebook, show: Callable[[str], str], module: str) -> None:
    text = show(
        f"from {module} import tqdm\nfor epoch in tqdm(range(3), desc='epochs'):\n"
        "    for _ in tqdm(range(4), leave=False): pass\nprint('done')"
    )
    outputs = notebook.cells[-1].outputs
    assert "mno-stderr" not in outputs[-1].data["text/html"]  # a bar is no error
    bar, done = (line for line in text.splitlines() if not line.startswith("time: "))
    assert bar.startswith("[0-2] epochs: 100%|██████████| 3/3 [")
    assert done == "[0-2] done"


def test_a_bar_is_live_while_ranks_are_at_different_places(tmp_path: Path) -> None:
    kernel = RawKernel()
    kernel.run("%load_ext monarch_nb\n%mesh start bars --procs 2")
    gate = FileLatch(tmp_path / "gate")
    wait = gate.source.replace("\n", "\n        ")
    cell = kernel.start(
        "%%mesh\nfrom tqdm.notebook import tqdm\nfor i in tqdm(range(10), mininterval=0, desc='steps'):\n"
        f"    if i == 2 + 3 * rank:\n        {wait}"
    )
    kernel.wait_for(cell, "[0-1] steps:  20%|██        | 2-5/10 [")
    gate.open()
    kernel.finish(cell)
    assert "[0-1] steps: 100%|██████████| 10/10 [" in kernel.text(cell)
    kernel.run("%mesh stop bars")
    kernel.close()


def test_widgets_say_once_what_they_cannot_do(show: Callable[[str], str]) -> None:
    first = show("import ipywidgets\ndisplay(ipywidgets.IntSlider())\nipywidgets.Button()")
    assert first.count("ipywidgets can't be used on a rank") == 1 and "[0-2] IntSlider(value=0)" in first
    assert show("ipywidgets.IntSlider()") == "[0-2] IntSlider(value=0)"
