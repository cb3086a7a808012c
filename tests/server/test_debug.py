"""The debugger through the server: who stands where, lines to them, and who may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError

from monarch_nb._server.bodies import BadBody
from monarch_nb._server.debug import read_ids
from monarch_nb.mesh import Mesh

pytestmark = pytest.mark.timeout(120)
SOURCE = "x = rank * 10\ny = 'same'\nbreakpoint()\nz = x + 1"


@pytest.fixture
def stopped(demo: Mesh) -> Iterator[Mesh]:
    """A mesh of which ranks 0-2 stand at a breakpoint, as soon as they've come there."""
    run = demo.submit(SOURCE, "0-2")
    yield demo
    demo.interrupt()
    run.wait()


def all_stand(num: int) -> Any:
    return lambda m: m["type"] == "debug" and sum(s["state"] == "stopped" for s in m["stops"]) == num


async def test_stops_come_over_the_stream_and_go(page: Any, api: Any, stopped: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=3, what="debug", mesh="demo")
    message = await socket.until(all_stand(3))
    assert message["id"] == 3
    assert [s["rank"] for s in message["stops"]] == [0, 1, 2]
    stop = message["stops"][0]
    assert stop["thread"] == "main"
    assert any(text == "z = x + 1" for _, text in stop["source"])
    assert (await api("meshes", "demo", "debug"))["stops"] == message["stops"]
    ids = [s["id"] for s in message["stops"]]
    answer = await api("meshes", "demo", "debug", method="POST", body={"ids": ids[:2], "line": "p y"})
    assert answer["answers"] == [{"ids": ids[:2], "ranks": "0-1", "text": "'same'"}]
    answer = await api("meshes", "demo", "debug", method="POST", body={"ids": None, "line": "p x"})
    assert [(a["ranks"], a["text"]) for a in answer["answers"]] == [("0", "0"), ("1", "10"), ("2", "20")]
    answer = await api("meshes", "demo", "debug", method="POST", body={"ids": None, "line": "!!vars"})
    values = {a["ranks"]: json.loads(a["text"]) for a in answer["answers"]}
    assert {ranks: v["x"]["value"] for ranks, v in values.items()} == {"0": "0", "1": "10", "2": "20"}
    await api("meshes", "demo", "debug", method="POST", body={"ids": None, "line": "continue"})
    await socket.until(lambda m: m["type"] == "debug" and not m["stops"])


async def test_a_page_that_looks_no_longer_and_a_mesh_that_ends(page: Any, demo: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=1, what="debug", mesh="demo")
    await socket.until(lambda m: m["type"] == "debug" and m["stops"] == [])
    await socket.send(op="unwatch", id=1)
    await socket.send(op="watch", id=2, what="debug", mesh="demo")
    await socket.until(lambda m: m["id"] == 2)
    demo.stop(grace_s=0.0)
    gone = await socket.until(lambda m: m["type"] == "gone")
    assert gone["id"] == 2
    assert gone["reason"].startswith("mesh 'demo' was stopped by ")


async def test_a_mesh_that_is_not_there(page: Any, api: Any, demo: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=1, what="debug", mesh="nowhere")
    message = await socket.until(lambda m: m["type"] == "error")
    assert "nowhere" in message["message"]
    with pytest.raises(HTTPClientError) as caught:
        await api("meshes", "nowhere", "debug")
    assert caught.value.code == 404


async def test_who_may_only_read_sees_but_does_not_command(
    api: Any, demo: Mesh, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def may(handler: object, user: object, action: str, resource: str) -> bool:
        await asyncio.sleep(0)
        return action == "read"

    monkeypatch.setattr(jp_serverapp.authorizer, "is_authorized", may)
    assert (await api("meshes", "demo", "debug"))["stops"] == []
    with pytest.raises(HTTPClientError) as caught:
        await api("meshes", "demo", "debug", method="POST", body={"ids": None, "line": "p 1"})
    assert caught.value.code == 403


@pytest.mark.parametrize("ids", ["0", [1.5], [True], {"a": 1}, ["1"]])
def test_ids_that_are_none(ids: object) -> None:
    with pytest.raises(BadBody, match="list of numbers"):
        read_ids({"ids": ids})


async def test_bad_commands_are_one_sentence(api: Any, demo: Mesh) -> None:
    for body in (
        {"ids": "all", "line": "p 1"},
        {"ids": None, "line": 5},
        {"ids": None, "line": "x" * 200_000},
    ):
        with pytest.raises(HTTPClientError) as caught:
            await api("meshes", "demo", "debug", method="POST", body=body)
        assert caught.value.code == 400
        assert caught.value.response is not None
        assert json.loads(caught.value.response.body)["message"]
