"""Outputs of cells, as JupyterLab shows them: with its styles and ours on one page, in both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Page, opened

CELLS = [
    "%load_ext monarch_nb\n%mesh start seen --gpus 4",
    "%%mesh\nimport time\ntime.sleep(0.2 * (1 + rank))\nprint('came late')",
    "%%mesh --ranks 0\nfor i in range(400_000):\n    print('line', i)",
    "mesh.pull('rank')",
    "%%mesh\nloss = 0.5 * (rank // 2)\ndef step(x, lr=0.1):\n    'Steps once.'\n    return x",
    "%%mesh\nloss",
    "%mesh on-failure ",
    "print(mesh.dashboard_url)",
    "%%mesh --ranks 0-1\nimport time\nfrom IPython.display import HTML, Markdown, display\n"
    "for i in range(3):\n    print('step', i)\n"
    "    display(HTML(f'<i>page {i}</i>'), Markdown(f'**drawn {i} of {rank}**'))\n"
    "    time.sleep(0.5 * rank)\n'the end'",
    "%mesh stop seen",
]
GROUNDS = """() => [...document.querySelectorAll('.jp-OutputArea table tbody tr')].map(row => {
  const transparent = 'rgba(0, 0, 0, 0)';
  const colours = [...row.querySelectorAll('td, td *')].map(e => getComputedStyle(e).backgroundColor);
  return colours.filter(c => c !== transparent).length;
})"""


@pytest.fixture(scope="module")
def page(browser: Any, lab: Lab) -> Iterator[Page]:
    with opened(browser, lab, CELLS, "outputs.ipynb") as notebook:
        yield notebook


def test_bars_are_as_high_as_ranks_took_time(page: Page, pictures: Path) -> None:
    page.run(1)
    bars = page.page.locator(".mno-bar")
    bars.first.wait_for()
    heights = bars.evaluate_all("all => all.map(b => b.getBoundingClientRect().height)")
    assert len(heights) == 4
    assert heights == sorted(heights)
    assert heights[0] < 0.6 * heights[3] <= 18
    assert page.page.locator(".mno-text").first.evaluate("e => getComputedStyle(e).userSelect") in (
        "auto",
        "text",
    )
    page.picture(pictures / "bars.png")


def test_rows_of_a_table_have_one_ground(page: Page, pictures: Path) -> None:
    page.run(3)
    page.page.locator(".jp-OutputArea table tbody tr").nth(3).wait_for()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.use_theme(theme)
        assert page.page.evaluate(GROUNDS) == [0, 0, 0, 0]
        page.picture(pictures / f"table-{theme.split()[-1].lower()}.png")


def test_400_000_lines_stay_in_a_box_at_its_end(page: Page, pictures: Path) -> None:
    page.run(2)
    box = page.page.locator(".mno-long")
    box.wait_for()
    assert box.bounding_box()["height"] < 800
    shown = box.evaluate("b => [b.scrollHeight, b.clientHeight, b.scrollTop]")
    assert shown[0] > 10_000
    assert shown[2] == 0, "a box whose order is reversed begins at its end"
    last = box.locator(".mno-text", has_text=re.compile("^line 399999$")).evaluate(
        "(e) => [e.getBoundingClientRect().bottom, e.closest('.mno-long').getBoundingClientRect().bottom]"
    )
    assert abs(last[0] - last[1]) < 30
    page.picture(pictures / "long.png")


def test_lines_and_displays_stand_in_their_order(page: Page, pictures: Path) -> None:
    """One rank lags, so what it draws comes between outputs that are there already."""
    page.run(8)
    last = page.page.locator(".jp-OutputArea", has_text="the end")
    last.wait_for()
    words = re.findall(r"step \d|page \d|drawn \d of \d|the end", last.inner_text())
    steps = [[f"step {i}", f"page {i}", f"drawn {i} of 0", f"drawn {i} of 1"] for i in range(3)]
    assert words == [*(word for step in steps for word in step), "the end"]
    last.evaluate("e => e.scrollIntoView({block: 'end'})")
    page.picture(pictures / "order.png")


def test_shift_tab_tells_what_the_ranks_have(page: Page, pictures: Path) -> None:
    page.run(4)
    type_at_the_end(page, 5, "Shift+Tab")
    tooltip = page.page.locator(".jp-Tooltip")
    tooltip.get_by_text("[2-3] 0.5").wait_for()
    assert "[0-1] 0.0" in tooltip.inner_text()
    page.picture(pictures / "tooltip.png")
    page.page.keyboard.press("Escape")


def test_tab_offers_values_and_no_files(page: Page, pictures: Path) -> None:
    type_at_the_end(page, 6, "Tab")
    offers = page.page.locator(".jp-Completer-item")
    offers.first.wait_for()
    texts = offers.all_inner_texts()
    assert all(name in text for name, text in zip(("heal", "shrink", "stop"), texts, strict=False)), texts
    assert not any("unknown" in text for text in texts[:3])
    assert not any("outputs.ipynb" in text or "server.log" in text for text in texts)
    page.picture(pictures / "values.png")
    page.page.keyboard.press("Escape")


def type_at_the_end(page: Page, n: int, key: str) -> None:
    page.page.locator(".jp-Notebook .jp-Cell").nth(n).locator(".cm-content").click()
    page.page.keyboard.press("Control+End")
    page.page.keyboard.press(key)


def test_the_dashboard_of_a_kernel_is_its_servers(lab: Lab, page: Page, browser: Any) -> None:
    url = page.run(7)
    assert url.startswith(lab.url.split("/lab?")[0]) and url.endswith("/monarch_nb/dashboard?mesh=seen")
    opened = browser.new_page()
    opened.goto(f"{url}&token=T")
    assert "token" not in opened.url
    opened.locator(".mnb-cell.mnb-idle").nth(3).wait_for()
    opened.close()
