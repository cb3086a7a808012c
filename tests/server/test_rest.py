"""REST: who may, what is answered, what is refused and how."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from processes import PATIENCE_S
from tornado.httpclient import HTTPClientError

from monarch_nb import __version__
from monarch_nb import mesh as meshes
from monarch_nb._client import launch
from monarch_nb._server.bodies import BadBody, read_resize, read_start
from monarch_nb.mesh import Mesh

PRELOAD = "none"
Api = Callable[..., Awaitable[Any]]


async def refused(answer: Awaitable[Any]) -> tuple[int, str]:
    """Return status and sentence of a refusal."""
    with pytest.raises(HTTPClientError) as caught:
        await answer
    assert caught.value.response is not None
    return caught.value.code, json.loads(caught.value.response.body)["message"]


async def test_version(api: Api) -> None:
    assert await api("version") == {"version": __version__, "protocol": 1}


async def test_nobody_gets_in_without_a_token(jp_fetch: Any, jp_ws_fetch: Any, demo: Mesh) -> None:
    bad = {"Authorization": "token wrong"}
    for path in (
        ("version",),
        ("clusters",),
        ("allocations",),
        ("meshes",),
        ("meshes", "demo"),
        ("meshes", "demo", "logs"),
    ):
        with pytest.raises(HTTPClientError) as caught:
            await jp_fetch("monarch_nb", "api", *path, headers=bad)
        assert caught.value.code == 403
    for path in (
        ("meshes",),
        ("allocations", "demo", "wait"),
        ("meshes", "demo", "interrupt"),
        ("meshes", "demo", "heal"),
        ("meshes", "demo", "resize"),
    ):
        with pytest.raises(HTTPClientError) as caught:
            await jp_fetch("monarch_nb", "api", *path, headers=bad, method="POST", body="{}")
        assert caught.value.code == 403
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("monarch_nb", "api", "meshes", "demo", headers=bad, method="DELETE")
    assert caught.value.code == 403
    with pytest.raises(HTTPClientError) as caught:
        await jp_ws_fetch("monarch_nb", "stream", headers=bad)
    assert caught.value.code == 403
    demo.run("1 + 1")


async def test_who_may_only_read_changes_nothing(
    api: Api, jp_ws_fetch: Any, demo: Mesh, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def may(handler: object, user: object, action: str, resource: str) -> bool:
        asked.append((action, resource))
        return action == "read"

    monkeypatch.setattr(jp_serverapp.authorizer, "is_authorized", may)
    assert (await api("meshes", "demo"))["name"] == "demo"
    for verb in ("interrupt", "heal", "resize"):
        with pytest.raises(HTTPClientError) as caught:
            await api("meshes", "demo", verb, method="POST", body={})
        assert caught.value.code == 403
    for path in ("meshes", "allocations"):
        with pytest.raises(HTTPClientError) as caught:
            await api(path, "demo", method="DELETE")
        assert caught.value.code == 403
    assert {r for _, r in asked} == {"monarch_nb"}
    (await jp_ws_fetch("monarch_nb", "stream")).close()


async def test_who_may_not_read_gets_no_stream(
    jp_ws_fetch: Any, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jp_serverapp.authorizer, "is_authorized", lambda *_: False)
    with pytest.raises(HTTPClientError) as caught:
        await jp_ws_fetch("monarch_nb", "stream")
    assert caught.value.code == 403


async def test_a_mesh_that_a_script_has_started_is_listed_and_described(api: Api, demo: Mesh) -> None:
    (row,) = await api("meshes")
    assert (row["name"], row["pid"], row["sizes"], row["states"]) == (
        "demo",
        demo.status().pid,
        [["gpus", 4]],
        {"idle": 4},
    )
    status = await api("meshes", "demo")
    assert [r["state"] for r in status["ranks"]] == ["idle"] * 4
    assert all(r["memory_bytes"] > 1 << 20 for r in status["ranks"])
    assert status["hosts"][0]["num_cores"] == os.cpu_count()
    assert len(status["clients"]) == 1 and f"(pid {os.getpid()})" in status["clients"][0]


async def test_a_mesh_is_started_and_stopped(api: Api) -> None:
    row = await api(
        "meshes",
        method="POST",
        body={"name": "made", "dims": [["gpus", 2]], "idle_timeout": "10m", "process_group": "gloo"},
    )
    assert (row["name"], row["states"]) == ("made", {"idle": 2})
    made = meshes.attach("made", listens=False, observes=True)
    made.run("import torch.distributed as dist\nbackend = dist.get_backend()")
    assert set(made.pull("backend").values()) == {"gloo"}
    (begun,) = [e for e in await api("meshes", "made", "journal", limit="9") if e["kind"] == "start"]
    assert begun["who"].startswith("panel (pid ")
    made._session.close()
    status, text = await refused(api("meshes", method="POST", body={"name": "made", "dims": [["gpus", 2]]}))
    assert status == 409 and "runs already" in text
    assert await api("meshes", "made", method="DELETE") is None
    assert await api("meshes") == []


async def test_interrupt_heal_resize(api: Api, demo: Mesh) -> None:
    run = demo.submit("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    await api("meshes", "demo", "interrupt", method="POST", body={"ranks": "all"})
    assert run.wait().reason == "user"
    os.kill(demo.status().ranks[2].pid, signal.SIGKILL)
    while (await api("meshes", "demo"))["ranks"][2]["state"] != "lost":
        pass
    answer = await api("meshes", "demo", "heal", method="POST", body={})
    assert "rank 2 started anew" in answer["report"]
    answer = await api("meshes", "demo", "resize", method="POST", body={"sizes": [["gpus", 3]]})
    assert len((await api("meshes", "demo"))["ranks"]) == 3
    status, text = await refused(
        api("meshes", "demo", "resize", method="POST", body={"sizes": [["cpus", 3]]})
    )
    assert status == 409 and "cpus" in text and "gpus" in text
    who = {e["kind"]: e["who"] for e in await api("meshes", "demo", "journal", limit="20")}
    assert {who[kind] for kind in ("command", "heal", "resize")} == {f"panel (pid {os.getpid()})"}


async def test_logs_a_page_at_a_time(api: Api, demo: Mesh) -> None:
    demo.run(
        "import sys\nfor i in range(3000): print(f'line {i} of {rank} ' + 'x' * 200)\nprint('bad', "
        "file=sys.stderr)"
    )
    page = await api("meshes", "demo", "logs", ranks="2", limit="50")
    assert {line["rank"] for line in page["lines"]} == {2}
    assert [line["text"] for line in page["lines"] if line["stream"] == "stderr"] == ["bad"]
    texts = [line["text"] for line in page["lines"] if line["stream"] == "stdout"]
    while page["before"] is not None:
        page = await api("meshes", "demo", "logs", ranks="2", limit="50", before=str(page["before"]))
        texts = [line["text"] for line in page["lines"] if line["stream"] == "stdout"] + texts
    assert texts == [f"line {i} of 2 " + "x" * 200 for i in range(3000)]


async def test_logs_are_searched(api: Api, demo: Mesh) -> None:
    demo.run("for i in range(1000): print(f'step {i} loss {i * rank}')")
    page = await api("meshes", "demo", "logs", ranks="1", grep=r"loss 9\d7$")
    assert [line["text"] for line in page["lines"]] == [f"step 9{d}7 loss 9{d}7" for d in range(10)]
    status, text = await refused(api("meshes", "demo", "logs", grep="("))
    assert status == 400 and "not a regular expression" in text


async def test_stacks_journal_and_the_way_into_a_notebook(api: Api, demo: Mesh) -> None:
    run = demo.submit("import time\nprint('begun')\ntime.sleep(600)")
    while not (await api("meshes", "demo", "logs", grep="begun"))["lines"]:
        pass
    assert "time.sleep(600)" in (await api("meshes", "demo", "stacks", ranks="0-3"))["text"]
    assert (await api("meshes", "demo", "journal", limit="1"))[0]["source"].startswith("import time")
    assert (await api("meshes", "demo", "attach"))["code"] == "%load_ext monarch_nb\n%mesh attach demo"
    demo.interrupt()
    run.wait()


BAD: list[tuple[tuple[str, ...], str, Any, int, str]] = [
    (("meshes", "nope"), "GET", None, 404, "'nope' is not running"),
    (("meshes", "demo", "interrupt"), "POST", {"ranks": "9"}, 400, "9"),
    (("meshes", "demo", "interrupt"), "POST", {"ranks": 3}, 400, "ranks must be text, not 3"),
    (("meshes", "demo", "interrupt"), "POST", "[", 400, "not JSON"),
    (("meshes", "demo", "interrupt"), "POST", "[1]", 400, "JSON object, not list"),
    (("meshes", "demo", "resize"), "POST", {}, 400, "sizes must be a list"),
    (("meshes",), "POST", {"name": "a b"}, 400, "a mesh's name is letters"),
    (("meshes", "demo", "logs?before=x"), "GET", None, 400, "before must be a number"),
    (("meshes", "demo", "journal?limit=x"), "GET", None, 400, "limit must be a number"),
    (("meshes", "demo", "journal?limit=" + "9" * 40), "GET", None, 400, "of at most 18 digits"),
    (("meshes", "demo", "logs?before=" + "9" * 400), "GET", None, 400, "of at most 18 digits"),
    (("meshes", "demo", "logs?limit=%C2%B2"), "GET", None, 400, "limit must be a number"),
]


async def test_bad_requests(api: Api, demo: Mesh) -> None:
    for path, method, body, status, words in BAD:
        *rest, last = path
        name, _, query = last.partition("?")
        params = dict([query.split("=")]) if query else {}
        found, text = await refused(api(*rest, name, method=method, body=body, **params))
        assert (found, words in text) == (status, True), text
    assert (await api("meshes", "demo"))["name"] == "demo"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": ""}, "name must be text"),
        ({"dims": "gpus=4"}, "dims must be a list"),
        ({"dims": [["gpus", 0]]}, "dims must be a list"),
        ({"dims": [["gpus", True]]}, "dims must be a list"),
        ({"num_hosts": -1}, "num_hosts must be a number"),
        ({"job": "slurm"}, "job must be one of local, process"),
        ({"idle_timeout": "soon"}, "idle_timeout: a duration is"),
        ({"cpus": 4}, "unknown field 'cpus'; known: name"),
        ({"gpus": 4}, "gpus is for hosts of an engine: say which one by on"),
        ({"on": "lab", "gpus": -1}, "gpus must be a number from 0"),
        ({"on": "lab", "time": "soon"}, "time: a duration is"),
        ({"on": "lab", "hosts": "--force"}, "hosts must be one word of text, not '--force'"),
        ({"on": "lab", "num_hosts": 2}, "num_hosts and job are for this machine"),
    ],
)
def test_bodies_that_make_no_sense(body: dict[str, Any], words: str) -> None:
    with pytest.raises(BadBody, match=words):
        read_start(body)


def test_a_resize_needs_sizes() -> None:
    with pytest.raises(BadBody, match="at least one dimension"):
        read_resize({"sizes": []})


async def test_a_mesh_of_another_version_is_listed_with_what_is_wrong(api: Api, demo: Mesh) -> None:
    path = launch.connection_path("demo")
    with open(path) as file:
        content = json.load(file)
    with open(path, "w") as file:
        json.dump({**content, "wire_version": 999}, file)
    (row,) = await api("meshes")
    assert "another version" in row["trouble"] and row["states"] == {}
    status, text = await refused(api("meshes", "demo"))
    assert status == 404 and "another version" in text
    with open(path, "w") as file:
        json.dump(content, file)


async def test_metrics_are_on_jupyters_own_page(jp_fetch: Any, demo: Mesh) -> None:
    memory = 'monarch_nb_rank_memory_bytes{mesh="demo",rank="3"}'
    text, limit = "", time.monotonic() + PATIENCE_S
    while memory not in text and time.monotonic() < limit:  # a rank's memory is known once it was looked at
        text = (await jp_fetch("metrics")).body.decode()
    assert memory in text
    assert 'monarch_nb_ranks{mesh="demo",state="idle"} 4.0' in text


async def test_looking_on_does_not_keep_a_mesh_alive(api: Api, page: Any, demo: Mesh) -> None:
    socket = await page()
    await socket.send(op="watch", id=1, what="status", mesh="demo")
    status = (await socket.until(lambda m: m["type"] == "status"))["status"]
    assert status["lease_left_s"] is None  # this program holds it
    assert len(status["clients"]) == 1
