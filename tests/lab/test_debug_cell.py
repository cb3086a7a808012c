"""The debugger's prompt in a cell, in a browser: typed at, answered, and kept in the notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab import Lab, Page

CELLS = [
    "%load_ext monarch_nb\n%mesh start typed --gpus 4",
    (
        "%%mesh\ndef step(x):\n    y = x * 2\n    breakpoint()\n    return y + 1\nresult = step(rank)\n"
        "print('done', result)"
    ),
    "%mesh stop",
]


def test_the_prompt_in_the_cell(lab: Lab, browser: Any, pictures: Path) -> None:
    page = Page(browser, lab, CELLS, "typed.ipynb")
    page.run(0)
    page.start(1)
    box = page.page.locator(".jp-Stdin-input").last
    prompt = page.page.locator(".jp-Stdin-prompt").last

    def type_line(text: str) -> None:
        """Type, and wait until that input has gone."""
        box.wait_for()
        element = box.element_handle()
        box.fill(text)
        box.press("Enter")
        page.page.wait_for_function("e => !e.isConnected", arg=element)

    prompt.wait_for()
    while "0-3" not in prompt.inner_text():  # ranks come one by one
        type_line("list")
        prompt.wait_for()
    type_line("p y")
    page.wait_for(1, "[3] 6")
    type_line("focus 2")
    type_line("y = 40")
    type_line("focus all")
    box.wait_for()
    page.picture(pictures / "debug-cell.png")
    type_line("c")
    page.wait_for(1, "[2] done 41")
    assert "[0] done 1" in page.text(1)
    page.run(2)
    assert page.errors == [] and page.strangers == []
