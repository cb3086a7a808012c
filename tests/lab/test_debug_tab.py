"""The debugger's tab as people use it: ranks stop, are asked together, step, differ, and run on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Page

BREAKS = """%%mesh --async
def step(loss):
    scale = 2
    breakpoint()
    scale += rank
    return loss * scale
found = step(rank // 2)"""
STOPS = "%%mesh\nbreakpoint()\nprint('ran on')\nwhile not os.path.exists('{gate}'): time.sleep(0.01)\n'over'"
CELLS = [
    "%load_ext monarch_nb\n%mesh start debugged --procs 4", BREAKS, "%mesh pull found",
    "%%mesh\nimport os, time", STOPS, "'the kernel is free'", "%mesh stop",
]  # fmt: skip


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Any) -> Page:
    return Page(browser, lab, [c.replace("{gate}", f"{lab.root}/gate") for c in CELLS], "debugged.ipynb")


def show_notebook(page: Page) -> None:
    page.page.evaluate(
        "() => { const w = [...jupyterapp.shell.widgets('main')].find(w => w.context); "
        "jupyterapp.shell.activateById(w.id); }"
    )
    page.page.wait_for_function(
        "() => jupyterapp.shell.currentWidget?.context"
    )  # activation comes with the next frame


def test_ranks_are_debugged_together_in_a_tab(page: Page, pictures: Path) -> None:
    assert "is ready" in page.run(0)
    page.execute("monarch-nb:open-panel")
    page.page.evaluate("() => { jupyterapp.commands.execute('monarch-nb:debug', {mesh: 'debugged'}); }")
    tab = page.page.locator(".mnb-debug")
    tab.get_by_text("No rank has stopped.").wait_for()
    page.picture(pictures / "debug-nobody.png")

    # The badge in the panel is the way back to the tab.
    show_notebook(page)
    page.run(1)
    page.page.locator("#monarch-nb-panel .mnb-badge").click()
    places = tab.locator(".mnb-debug-place")
    tab.get_by_text("ranks 0-3: In [2] line").first.wait_for()
    assert places.count() == 1
    assert "scale" in tab.locator(".mnb-mod-here").inner_text()
    tab.locator(".mnb-debug-variables tr", has_text="loss").get_by_text("[0-1]").wait_for()

    # One line for all; answers folded.
    prompt = tab.get_by_label("Line for the ranks of the focus")
    prompt.fill("p loss")
    prompt.press("Enter")
    tab.locator(".mnb-debug-entry", has_text="[0-1] 0").wait_for()
    tab.locator(".mnb-debug-entry", has_text="[2-3] 1").wait_for()
    page.picture(pictures / "debug-stopped.png")

    # Some go a line ahead: two places; only these get the next line.
    prompt.fill("focus 0-1")
    prompt.press("Enter")
    tab.get_by_role("button", name="Next", exact=True).click()
    page.page.wait_for_function("() => document.querySelectorAll('.mnb-debug-place').length === 2")
    prompt.press("ArrowUp")
    assert prompt.input_value() == "focus 0-1"
    prompt.fill("!scale = 10")
    prompt.press("Enter")
    tab.locator(".mnb-debug-variables tr", has_text="scale").get_by_text("10").wait_for()
    page.picture(pictures / "debug-two-places.png")

    # Nobody else hears of a word that isn't one.
    prompt.fill("no_such_name")
    prompt.press("Enter")
    tab.get_by_text("NameError").first.wait_for()

    tab.get_by_role("button", name="All", exact=True).click()
    tab.get_by_role("button", name="Continue", exact=True).click()
    tab.get_by_text("No rank has stopped.").wait_for()
    show_notebook(page)
    assert not page.errors


def test_who_continues_in_the_tab_closes_the_prompt_in_the_notebook(
    lab: Lab, page: Page, pictures: Path
) -> None:
    page.run(3)
    page.start(4)
    box = page.page.locator(".jp-Stdin-input")
    page.page.locator(".jp-Stdin-prompt", has_text="(mesh-pdb").wait_for()
    page.picture(pictures / "prompt-open.png")
    page.page.evaluate("() => { jupyterapp.commands.execute('monarch-nb:debug', {mesh: 'debugged'}); }")
    tab = page.page.locator(".mnb-debug")
    tab.get_by_text("ranks 0-3: In [4] line").first.wait_for()
    tab.get_by_role("button", name="Continue", exact=True).click()
    tab.get_by_text("No rank has stopped.").wait_for()
    show_notebook(page)
    box.wait_for(state="detached")  # while the cell goes on
    page.wait_for(4, "ran on")
    page.picture(pictures / "prompt-closed.png")
    (lab.root / "gate").touch()
    page.wait_for(4, "over")
    assert "the kernel is free" in page.run(5)
    assert page.page.locator(".jp-Dialog").count() == 0
    assert "has ended" in page.run(6)
    assert not page.errors
    assert not page.strangers
