"""`mesh` as the last line of a cell, in a real kernel: four forms in one output, renewed as the mesh
changes; buttons that work while a cell runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kernels import Notebook, shown
from typist import FrontEnd

MIME = "application/vnd.monarch-nb.mesh+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
PATIENCE_S = 60.0


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start carded --gpus 2")
    yield opened
    opened.run("%mesh stop carded")
    opened.close()


def test_the_picture_shows_what_was_last(notebook: Notebook) -> None:
    (output,) = notebook.run("mesh")
    cell = notebook.cells[-1]
    assert set(output.data) == {"text/plain", "text/html", MIME, WIDGET}
    assert "idle      ranks 0-1" in output.data["text/plain"]
    assert [r["state"] for r in output.data[MIME]["snapshot"]["ranks"]] == ["idle", "idle"]
    assert "<script" not in output.data["text/html"]
    failed = shown(notebook.run("%%mesh --ranks 1\nimport os; os._exit(7)"))
    assert "exited with code 7" in failed
    (output,) = cell.outputs
    assert [r["state"] for r in output.data[MIME]["snapshot"]["ranks"]] == ["idle", "lost"]
    assert "1 lost" in output.data["text/html"] and "exited with code 7" in output.data["text/html"]
    notebook.run("%mesh heal")
    assert [r["state"] for r in cell.outputs[0].data[MIME]["snapshot"]["ranks"]] == ["idle", "idle"]
    notebook.run("%mesh stop carded")
    assert cell.outputs[0].data[MIME]["ended"] == "it was stopped"
    assert WIDGET not in cell.outputs[0].data
    assert "it was stopped" in cell.outputs[0].data["text/html"]


def test_top_shows_the_same_in_text(notebook: Notebook) -> None:
    text = notebook.text("%mesh top --count 2 --every 0.1s")
    assert "carded  gpus=2  idle 0-1" in text
    assert "idle      ranks 0-1" in notebook.text("%mesh status")


class Page(FrontEnd):
    """What a front end without our extension does: it has the widget, and talks to it by comm messages."""

    def until(self, wanted: Callable[[dict[str, Any]], Any]) -> Any:
        """Return what `wanted` gives for the first message for which it gives anything."""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            found = wanted(message)
            if found:
                return found

    def start(self, source: str) -> str:
        return str(self.client.execute(source))

    def run(self, source: str) -> list[dict[str, Any]]:
        cell, seen = self.start(source), []

        def is_over(message: dict[str, Any]) -> bool:
            seen.append(message)
            return (
                message["parent_header"].get("msg_id") == cell
                and message["content"].get("execution_state") == "idle"
            )

        self.until(is_over)
        return seen

    def subshell(self) -> str:
        """Have a subshell made, as JupyterLab does for comm messages."""
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        return str(self.client.get_control_msg(timeout=PATIENCE_S)["content"]["subshell_id"])

    def send(self, model: str, content: dict[str, Any], subshell: str) -> None:
        message = self.client.session.msg(
            "comm_msg", {"comm_id": model, "data": {"method": "custom", "content": content}}
        )
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)


@pytest.fixture
def page() -> Iterator[Page]:
    opened = Page()
    yield opened
    opened.close()


def update(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return the new value of a widget's trait from its comm message."""
    return lambda m: m["msg_type"] == "comm_msg" and m["content"]["data"].get("state", {}).get(name)


def test_the_widget_is_live_and_its_buttons_work_while_a_cell_runs(page: Page) -> None:
    name = f"w{uuid.uuid4().hex[:6]}"
    page.run(f"%load_ext monarch_nb\n%mesh start {name} --gpus 2")
    seen = page.run("mesh")
    bundle = next(m["content"]["data"] for m in seen if m["msg_type"] == "display_data")
    model = bundle[WIDGET]["model_id"]
    opened = next(
        m["content"] for m in seen if m["msg_type"] == "comm_open" and m["content"]["comm_id"] == model
    )
    assert "render" in opened["data"]["state"]["_esm"]
    assert [r["state"] for r in opened["data"]["state"]["snapshot"]["ranks"]] == ["idle", "idle"]
    subshell = page.subshell()
    page.send(model, {"kind": "view", "visible": True}, subshell)
    page.until(update("snapshot"))
    cell = page.start("%%mesh\nimport time\ntime.sleep(600)")
    page.until(
        lambda m: [
            r
            for r in (update("delta")(m) or {"ranks": []})["ranks"]
            if r["rank"] == 1 and "time.sleep(600)" in r["line"]
        ]
    )
    page.send(model, {"kind": "action", "id": 1, "action": "stacks", "ranks": "1"}, subshell)

    def answer(message: dict[str, Any]) -> Any:
        content = (
            message["content"].get("data", {}).get("content", {}) if message["msg_type"] == "comm_msg" else {}
        )
        return content if content.get("kind") == "answer" else None

    found = page.until(answer)
    assert found["ok"] and "time.sleep(600)" in found["text"]
    page.send(model, {"kind": "action", "id": 2, "action": "interrupt"}, subshell)
    assert page.until(answer) == {"kind": "answer", "id": 2, "ok": True, "text": "interrupted"}
    page.until(
        lambda m: m["parent_header"].get("msg_id") == cell and m["content"].get("execution_state") == "idle"
    )
    page.send(model, {"kind": "action", "id": 3, "action": "fly"}, subshell)
    assert page.until(answer)["text"] == "there's no button 'fly'"
    page.run(f"%mesh stop {name}")
