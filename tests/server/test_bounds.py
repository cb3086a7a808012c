"""What is too much for the server: said in a sentence, and no token in the log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError

from monarch_nb._server import handlers
from monarch_nb._server.stream import MAX_MESSAGE_BYTES

DEEP = 100_000


@pytest.fixture
def token(jp_serverapp: Any) -> str:
    return str(jp_serverapp.identity_provider.token)


@pytest.mark.parametrize(
    "body",
    ["[" * DEEP, '{"name": ' + "[" * DEEP + "]" * DEEP + "}", '{"name": ' + "[" * 900 + "]" * 900 + "}"],
)
async def test_json_that_is_nested_too_deep_is_refused(
    jp_fetch: Any, token: str, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch(
            "monarch_nb",
            "api",
            "meshes",
            method="POST",
            body=body,
            headers={"Authorization": ""},
            params={"token": token},
        )
    assert caught.value.code == 400
    assert token not in logged(caplog)


async def test_a_body_may_not_be_longer_than_any_needs(jp_fetch: Any) -> None:
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch(
            "monarch_nb",
            "api",
            "meshes",
            method="POST",
            body=json.dumps({"name": "x" * handlers.MAX_BODY_BYTES}),
        )
    assert caught.value.code == 400
    assert caught.value.response is not None
    assert "at most 1,048,576 bytes" in json.loads(caught.value.response.body)["message"]


async def test_a_fault_of_ours_is_logged_without_the_token(
    jp_fetch: Any, token: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(handlers.VersionHandler, "answer", fail)
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("monarch_nb", "api", "version", headers={"Authorization": ""}, params={"token": token})
    assert caught.value.code == 500
    found = logged(caplog)
    assert "Uncaught exception in GET" in found
    assert "ZeroDivisionError: a fault" in found
    assert token not in found


async def test_the_stream_takes_short_messages(page: Any) -> None:
    socket = await page()
    await socket.raw.write_message("[" * 50_000)
    assert "expected" in (await socket.read())["message"]
    await socket.raw.write_message(json.dumps({"op": "watch", "id": 1, "what": "x" * MAX_MESSAGE_BYTES}))
    assert await socket.raw.read_message() is None, "the connection is closed"


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Return what the server has logged since it runs; that it runs, it says with the token."""
    format_ = logging.Formatter().format
    return "\n".join(format_(r) for r in caplog.get_records("call"))
