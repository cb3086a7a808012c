"""Where something of ours is missing: without the labextension the card is a widget that talks to the
kernel; without the server extension the panel says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from lab import CHROMIUM, Lab, Page

CELLS = [
    "%load_ext monarch_nb\n%mesh start bare --gpus 2\nmesh",
    "%%mesh\nimport time\nprint('asleep')\ntime.sleep(600)",
    "%mesh stop",
]


@pytest.fixture
def open_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    if not CHROMIUM:
        pytest.skip("needs chromium: apt-get install chromium")
    opened: list[Lab] = []

    def start(*without: str) -> Lab:
        opened.append(Lab(tmp_path, without=without))
        return opened[-1]

    yield start
    for lab in opened:
        lab.close()


def test_the_widget_works_with_nothing_but_a_kernel(
    open_lab: Callable[..., Lab], browser: Any, pictures: Path
) -> None:
    lab = open_lab("server", "labextension")
    page = Page(browser, lab, CELLS, "bare.ipynb")
    page.run(0)
    card = page.page.locator(".jp-OutputArea .mnb-card")
    card.get_by_role("gridcell").nth(1).wait_for()
    page.start(1)
    page.wait_for(1, "asleep")
    page.page.wait_for_function("document.querySelectorAll('.mnb-cell.mnb-busy').length === 2")
    card.get_by_role("gridcell").nth(1).click()
    card.get_by_text("time.sleep(600)").first.wait_for()
    page.picture(pictures / "widget.png")
    card.get_by_role("button", name="Interrupt").click()  # while the kernel is busy
    page.wait_for(1, "ranks 0-1 were interrupted")
    page.page.wait_for_function("document.querySelectorAll('.mnb-cell.mnb-idle').length === 2")
    page.run(2)
    page.save()
    saved = nbformat.read(lab.root / "bare.ipynb", as_version=4).cells[0].outputs[-1].data
    assert (
        "application/vnd.jupyter.widget-view+json" not in saved
    )  # it would be an error when it's opened again
    assert "it was stopped" in saved["text/html"]
    assert page.errors == [] and page.strangers == []


def test_the_panel_says_that_the_server_extension_is_missing(
    open_lab: Callable[..., Lab], browser: Any, pictures: Path
) -> None:
    page = Page(browser, open_lab("server"), ["1"], "missing.ipynb")
    page.execute("monarch-nb:open-panel")
    panel = page.page.locator("#monarch-nb-panel")
    panel.get_by_text("The server extension monarch_nb is not enabled").wait_for()
    panel.get_by_text("jupyter server extension enable monarch_nb").wait_for()
    page.picture(pictures / "panel-missing.png")
    assert page.errors == []
