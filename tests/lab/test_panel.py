"""The sidebar as people use it: start, watch, kill, heal, interrupt, logs; a kernel restart; both themes;
a narrow panel.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Page

CELLS = [
    "%load_ext monarch_nb\n%mesh attach panelled",
    "%%mesh\nimport time\nprint('training on', rank)\ntime.sleep(600)",
    "%load_ext monarch_nb\n%mesh attach panelled\nmesh",
    "%%mesh\nfor i in range(300): print(f'step {i} of rank {rank}')\nrank",
    "%%mesh\nimport torch\ntorch.distributed.get_backend()",
    "%mesh start second --procs 2",
    "%mesh use panelled",
    "%mesh stop second",
    "%mesh start three --hosts 3 --procs 1",
    "%mesh stop three\n%mesh use panelled",
]


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Any) -> Page:
    return Page(browser, lab, CELLS, "panelled.ipynb")


def ranks_in(panel: Any, state: str, num: int) -> None:
    """Wait until the grid shows that many ranks in a state."""
    panel.page.wait_for_function(
        (
            "([state, num]) => document.querySelectorAll(`#monarch-nb-panel "
            ".mnb-cell.mnb-${state}`).length === num"
        ),
        arg=[state, num],
    )


def test_a_mesh_from_the_panel(lab: Lab, page: Page, pictures: Path) -> None:
    page.execute("monarch-nb:open-panel")
    panel = page.page.locator("#monarch-nb-panel")
    panel.get_by_text("No mesh is running.").wait_for()
    page.picture(pictures / "panel-empty.png")

    # Start. What is wrong is said where it's typed.
    panel.get_by_label("Name").fill("no good")
    panel.get_by_role("button", name="Start", exact=True).click()
    panel.locator(".mnb-form .mnb-problem").first.wait_for()
    panel.get_by_label("Name").fill("panelled")
    panel.get_by_label("Dimension").fill("gpus")
    panel.get_by_label("Size").fill("4")
    panel.get_by_label("Process group").select_option("gloo")
    panel.get_by_role("button", name="Start", exact=True).click()
    ranks_in(panel, "idle", 4)
    page.picture(pictures / "panel-idle.png")

    # The group that was chosen is there.
    assert "attached to mesh 'panelled'" in page.run(0)
    assert "[0-3] 'gloo'" in page.run(4)

    # A cell of the notebook makes ranks busy; the panel interrupts it while the kernel waits for it.
    page.start(1)
    ranks_in(panel, "busy", 4)
    panel.locator(".mnb-cell").nth(2).click()
    panel.get_by_text("time.sleep(600)").first.wait_for()
    page.picture(pictures / "panel-busy.png")
    panel.get_by_role("button", name="Interrupt", exact=True).click()
    ranks_in(panel, "idle", 4)
    page.wait_for(1, "ranks 0-3 were interrupted")

    # A rank is killed: it's lost, says why, and is healed from the panel.
    details = panel.get_by_role("region", name="Rank 2").or_(panel.locator(".mnb-rank"))
    pid = int(re.search(r"pid (\d+)", details.inner_text())[1])  # type: ignore[index]
    os.kill(pid, signal.SIGKILL)
    ranks_in(panel, "lost", 1)
    panel.get_by_text("killed by SIGKILL").first.wait_for()
    page.picture(pictures / "panel-lost.png")
    panel.get_by_role("button", name="Heal", exact=True).click()
    ranks_in(panel, "idle", 4)
    page.page.get_by_text("rank 2 started anew").first.wait_for()


def test_the_mesh_outlives_the_kernel(page: Page, pictures: Path) -> None:
    page.page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.restartKernel(); }")
    panel = page.page.locator("#monarch-nb-panel")
    ranks_in(panel, "idle", 4)
    page.run(2)
    page.page.locator(".jp-OutputArea .mnb-card").first.wait_for()
    page.picture(pictures / "card.png")
    assert page.text(2).count("idle      ranks 0-3") == 1


def test_logs_are_read_searched_and_followed(page: Page, pictures: Path) -> None:
    page.run(3)
    page.execute("monarch-nb:logs")
    log = page.page.get_by_role("log")
    log.get_by_text("step 299 of rank 3").wait_for()
    page.picture(pictures / "logs.png")
    tab = page.page.locator(".mnb-log-bar")
    tab.get_by_label("Search").first.fill(r"step 1\d7 of rank 1$")
    tab.get_by_role("button", name="Search").click()
    log.get_by_text("step 197 of rank 1").wait_for()
    assert log.get_by_text("step 299").count() == 0
    tab.get_by_label("Search").first.fill("(")
    tab.get_by_role("button", name="Search").click()
    page.page.get_by_text("not a regular expression").first.wait_for()
    page.execute("application:close")


def test_the_status_bar_shows_the_mesh_in_use(page: Page) -> None:
    status = page.page.locator("#jp-bottom-panel, .jp-StatusBar-Widget")
    status.get_by_text(re.compile("panelled")).first.wait_for()
    page.run(5)
    status.get_by_text(re.compile("second: 2 ok")).first.wait_for()
    page.run(6)
    status.get_by_text(re.compile("panelled: 4 ok")).first.wait_for()
    assert "has ended" in page.run(7)
    page.page.locator("#monarch-nb-panel").get_by_text("second").first.wait_for(state="detached")


def test_what_hosts_share_is_shown_once(page: Page, pictures: Path) -> None:
    page.run(8)
    mesh = page.page.locator("#monarch-nb-panel .mnb-mesh", has_text="three")
    hosts = mesh.locator(".mnb-host")
    # The controller's own, and three processes that stand for hosts.
    hosts.get_by_text("hosts 0-3").wait_for()
    assert hosts.count() == 1
    for fact in ("CPU", "Memory"):
        assert hosts.locator(".mnb-host-bar", has_text=fact).count() == 1
    page.picture(pictures / "panel-hosts.png")
    assert "has ended" in page.run(9)
    mesh.wait_for(state="detached")


def test_attach_and_resize(page: Page) -> None:
    panel = page.page.locator("#monarch-nb-panel")
    panel.get_by_role("button", name="Attach", exact=True).click()
    page.page.locator(".jp-Notebook .cm-content", has_text="%mesh attach panelled").nth(2).wait_for()
    panel.get_by_role("button", name="Resize", exact=True).click()
    panel.get_by_role("textbox", name="gpus").fill("3")
    panel.locator("form").get_by_role("button", name="Resize").click()
    ranks_in(panel, "idle", 3)


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_both_themes_and_a_narrow_panel(page: Page, pictures: Path, theme: str) -> None:
    page.use_theme(theme)
    page.page.set_viewport_size({"width": 620, "height": 900})
    panel = page.page.locator("#monarch-nb-panel")
    ranks_in(panel, "idle", 3)
    page.picture(pictures / f"panel-{theme.split()[-1].lower()}.png")
    too_wide = page.page.evaluate(
        "() => [...document.querySelectorAll('#monarch-nb-panel *')].filter(e => "
        "e.getBoundingClientRect().right > "
        "document.querySelector('#monarch-nb-panel').getBoundingClientRect().right + 1).map(e => "
        "e.className)"
    )
    assert too_wide == []
    page.page.set_viewport_size({"width": 1000, "height": 1200})


def test_stop_asks_first(page: Page) -> None:
    panel = page.page.locator("#monarch-nb-panel")
    panel.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_text("Stop mesh panelled?").wait_for()
    dialog.get_by_role("button", name="Stop").click()
    panel.get_by_text("No mesh is running.").wait_for()
    page.page.locator(".jp-OutputArea .mnb-card").get_by_text(re.compile("ended")).first.wait_for()
    assert page.errors == []
    assert page.strangers == []
