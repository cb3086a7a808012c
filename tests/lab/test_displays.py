"""What ranks display, on the page: JupyterLab draws each kind as it draws a kernel's own, and in both themes
all of it can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Page

CELLS = [
    "%load_ext monarch_nb\n%mesh start drawn --gpus 3",
    "%%mesh\nfrom IPython.display import *\ndisplay(Markdown(f'## Part {rank // 2}\\n**bold** and `code`'))\n"
    "display(Latex(r'$\\frac{a}{b}$'))\ndisplay(HTML('<b>html</b>'))\nJSON({'loss': [0.5]})",
    "%%mesh\nimport rich\nrich.print('[red]danger[/red] [blue]calm[/blue] [yellow]hm[/yellow]')\n"
    "from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='epochs'): pass\n"
    "handle = display('one', display_id='here')\nprint('between')\nhandle.update('two')",
    "%%mesh\nfor i in range(3):\n    clear_output(wait=True)\n    print('step', i, 'of rank', rank)",
    "%%mesh\nprint('all alike')\nif rank == 2:\n    raise FileNotFoundError('shard.bin')",
    "%%mesh --ranks 0\nname = input('name? ')\nprint('hello', name)",
    '%%mesh\ndisplay(SVG(\'<svg width="80" height="20"><text y="15" fill="green">drawn</text></svg>\'))\n'
    "display(Javascript('element.textContent = `written by ranks`'))\n"
    "vega = {'mark': 'bar', 'data': {'values': [{'a': 1, 'b': 2}, {'a': 2, 'b': 5}]}, "
    "'encoding': {'x': {'field': 'a', 'type': 'ordinal'}, 'y': {'field': 'b', 'type': 'quantitative'}}}\n"
    "display({'application/vnd.vegalite.v5+json': vega, 'text/plain': 'a chart'}, raw=True)",
    "%mesh stop drawn",
]
THEMES = ("JupyterLab Dark", "JupyterLab Light")
CONTRAST = """() => {
  const OTHERS = 'mjx-container, [data-mime-type="application/vnd.jupyter.stderr"]';
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.5) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll('.jp-OutputArea-output *')) {
    const own = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join('').trim();
    if (!own || !e.getClientRects().length || e.closest(OTHERS)) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 3) found.push([own.slice(0, 40), getComputedStyle(e).color, ratio.toFixed(1)]);
  }
  return found;
}"""
"""Texts that stand out from their ground by less than 3:1, as WCAG 2.1 measures it (1.4.3, large text).
Tracebacks have IPython's colours on JupyterLab's red, as those of any cell.
"""


@pytest.fixture(scope="module")
def page(browser: Any, lab: Lab) -> Iterator[Page]:
    opened = Page(browser, lab, CELLS, "displays.ipynb")
    for n in range(5):
        opened.run(n)
    yield opened
    opened.run(len(CELLS) - 1)
    assert opened.errors == []
    opened.page.close()


def output(page: Page, n: int) -> Any:
    return page.page.locator(".jp-Notebook .jp-Cell").nth(n).locator(".jp-OutputArea")


def test_each_kind_is_drawn(page: Page) -> None:
    shown = output(page, 1).first
    assert sorted(shown.locator(".jp-RenderedMarkdown h2").all_inner_texts()) == ["Part 0", "Part 1"]
    shown.locator(".jp-RenderedLatex mjx-container").first.wait_for()
    assert shown.locator("b", has_text="html").count() == 1
    shown.locator(".jp-RenderedJSON").get_by_text("loss").first.wait_for()


def test_colours_bars_and_updates(page: Page) -> None:
    shown = output(page, 2).first
    assert shown.locator(".ansi-red-fg", has_text="danger").count() == 1
    text = shown.inner_text()
    assert "epochs: 100%" in text
    assert text.count("two") == 1 and "'one'" not in text


def test_what_is_cleared_is_gone(page: Page) -> None:
    text = output(page, 3).first.inner_text()
    assert "step 2 of rank 1" in text
    assert "step 0" not in text


@pytest.mark.parametrize("theme", THEMES)
def test_all_of_it_can_be_read_in_both_themes(page: Page, pictures: Path, theme: str) -> None:
    page.use_theme(theme)
    for n in (1, 2, 4):
        output(page, n).first.scroll_into_view_if_needed()
        page.picture(pictures / f"displays-{n}-{theme.split()[-1].lower()}.png")
    assert page.page.evaluate(CONTRAST) == []


def test_a_question_of_a_rank_is_asked_in_the_cell(page: Page, pictures: Path) -> None:
    page.start(5)
    box = output(page, 5).first.locator("input")
    box.wait_for()
    page.picture(pictures / "question.png")
    box.fill("Ada")
    box.press("Enter")
    output(page, 5).first.get_by_text("hello Ada").first.wait_for()


def test_pictures_scripts_and_charts_are_drawn(page: Page, pictures: Path) -> None:
    page.run(6)
    shown = output(page, 6).first
    shown.get_by_text("written by ranks").first.wait_for()
    assert shown.locator("svg text", has_text="drawn").count() == 1
    shown.locator(".vega-embed svg, .vega-embed canvas").first.wait_for()
    shown.scroll_into_view_if_needed()
    page.picture(pictures / "charts.png")
