"""The panel as a page of its own, without Jupyter: `monarch-nb dashboard` and a browser."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

COMMAND = [sys.executable, "-m", "monarch_nb"]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("dashboard")
    found = {
        **os.environ,
        **{name: str(root / name.lower()) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")},
    }
    found.pop("JPY_PARENT_PID", None)
    return found


@pytest.fixture(scope="module")
def dashboard(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([*COMMAND, "dashboard"], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    link = re.search(r"http://127\.0\.0\.1:\d+/\S+", process.stdout.readline())
    assert link is not None
    yield process, link[0]
    process.terminate()
    process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def mesh(environment: dict[str, str]) -> Iterator[str]:
    subprocess.run(
        [*COMMAND, "start", "shown", "--procs", "4"], env=environment, check=True, timeout=PATIENCE_S
    )
    yield "shown"
    subprocess.run([*COMMAND, "stop", "shown"], env=environment, timeout=PATIENCE_S)


def test_only_who_has_the_token_gets_in(dashboard: tuple[Any, str], environment: dict[str, str]) -> None:
    process, link = dashboard
    base = link.split("/monarch_nb")[0]
    for path in (
        "/monarch_nb/dashboard",
        "/monarch_nb/api/meshes",
        "/monarch_nb/static/dashboard.js",
        "/monarch_nb/dashboard?token=wrong",
    ):
        with pytest.raises(HTTPError) as refused:
            urlopen(base + path)
        assert refused.value.code == 403
    for path in ("/", "/api/kernels", "/api/contents", "/monarch_nb/static/../page.py"):
        with pytest.raises(HTTPError) as refused:
            urlopen(base + path)
        assert refused.value.code in (403, 404)
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(base + "/monarch_nb/dashboard", headers={"Host": "elsewhere.example"}))
    assert refused.value.code == 403
    assert refused.value.read() == b"403: Forbidden"
    file = Path(environment["JUPYTER_RUNTIME_DIR"]) / "monarch_nb_dashboard.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["pid"] == process.pid
    again = subprocess.run(
        [*COMMAND, "dashboard"], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert link in again.stdout and "runs already" in again.stdout


def test_a_mesh_is_seen_and_driven(
    dashboard: tuple[Any, str], mesh: str, environment: dict[str, str], browser: Any, pictures: Path
) -> None:
    program = f"from monarch_nb.mesh import attach; print(attach({mesh!r}).dashboard_url)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    link = found.stdout.strip()
    assert link.startswith(dashboard[1]) and link.endswith("mesh=shown")
    subprocess.Popen(
        [*COMMAND, "exec", mesh, "import time\nprint('begun', rank)\ntime.sleep(600)"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    context = browser.new_context(color_scheme="dark", viewport={"width": 1100, "height": 800})
    page = context.new_page()
    errors: list[str] = []
    strangers: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(dashboard[1].split("/monarch_nb")[0])
            else strangers.append(request.url)
        ),
    )
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(link)
    assert "token" not in page.url and page.url.endswith("?mesh=shown")
    page.locator(".mnb-cell.mnb-busy").nth(3).wait_for()
    page.get_by_role("button", name="Logs").click()
    page.locator(".mnb-log-line", has_text="begun").first.wait_for()
    page.screenshot(path=pictures / "dashboard-dark.png")
    page.get_by_role("button", name="Interrupt", exact=True).click()
    page.locator(".mnb-cell.mnb-idle").nth(3).wait_for()
    page.emulate_media(color_scheme="light")
    page.locator(".mnb-cell").nth(2).click()
    page.get_by_role("button", name="Stack", exact=True).click()
    page.locator(".mnb-stacks").wait_for()
    page.screenshot(path=pictures / "dashboard-light.png")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("No mesh is running.").wait_for()
    assert (
        errors == [] and [url for url in strangers if not url.startswith(("data:", "ws://127.0.0.1"))] == []
    )
    context.close()


def test_it_leaves_nothing_behind(dashboard: tuple[Any, str], environment: dict[str, str]) -> None:
    process, _ = dashboard
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert list(Path(environment["JUPYTER_RUNTIME_DIR"]).glob("*dashboard*")) == []
    program = (
        "from monarch_nb._client.dashboard import dashboard_url\ntry: dashboard_url('x')\nexcept "
        "Exception as error: print(error)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert output.stdout.strip() == "no dashboard is running. Start one in a terminal: monarch-nb dashboard"
