"""Names that a Monarch program uses beside meshes and actors: settings, spans, tables; and what has no
meaning here says what to use.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterator

import pytest

import monarch_nb
from monarch_nb import configure, configured, get_global_config
from monarch_nb.actor import ChannelTransport, ProcMesh, enable_transport, get_meter, span, this_host, traced
from monarch_nb.config import clear_runtime_config, get_runtime_config
from monarch_nb.gather_mount import gather_mount
from monarch_nb.job import LocalJob
from monarch_nb.remotemount import remote_mount

T = 60


@pytest.fixture(scope="module")
def procs_here() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"lines": 2, "gpus": 2})
    yield procs
    procs.stop().get(T)


@pytest.fixture(autouse=True)
def nothing_stays_configured() -> Iterator[None]:
    yield
    clear_runtime_config()


def settled() -> None:
    from monarch_nb._client import session

    session.current().settle_output()


def test_settings_hold_within_their_block(procs_here: ProcMesh, capfd: pytest.CaptureFixture[str]) -> None:
    with configured(enable_log_forwarding=False) as settings:
        assert settings["enable_log_forwarding"] is False
        procs_here.execute(print, "hidden").get(T)
        settled()
    assert get_global_config()["enable_log_forwarding"] is True and get_runtime_config() == {}
    procs_here.execute(print, "shown").get(T)
    settled()
    printed = capfd.readouterr().out
    assert "shown" in printed and "hidden" not in printed


def test_a_time_that_was_configured_is_what_ranks_have_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    procs = this_host().spawn_procs()
    ask = procs._session.ask
    monkeypatch.setattr(
        procs._session, "ask", lambda request: (asked.append(request.grace_s), ask(request))[1]
    )
    configure(process_exit_timeout="1m 500ms")
    procs.stop().get(T)
    assert asked == [60.5]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"enable_log_forwardin": True}, "did you mean 'enable_log_forwarding'"),
        ({"zzz": True}, "there are enable_log_forwarding"),
        ({"enable_log_forwarding": 1}, "is True or False, not 1"),
        ({"process_exit_timeout": 5}, 'is a time such as "30s"'),
        ({"process_exit_timeout": "5 parsecs"}, "not '5 parsecs'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        configure(**settings)
    assert get_runtime_config() == {}


def test_what_has_no_meaning_here_says_what_there_is() -> None:
    with pytest.warns(UserWarning, match="no effect in monarch_nb: messages have no limit"):
        configure(codec_max_frame_length=1 << 30)
    assert get_global_config()["codec_max_frame_length"] == 1 << 30
    with pytest.warns(UserWarning, match="run_worker_loop_forever"):
        enable_transport("tcp://10.0.0.5:8080")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enable_transport(ChannelTransport.TcpWithHostname)
        enable_transport("ipc")
    with pytest.raises(ValueError, match="takes a ChannelTransport"):
        enable_transport("pigeon")
    for mount in (
        lambda: gather_mount(this_host(), "/a", "/b"),
        lambda: remote_mount(this_host(), "/a"),
        lambda: LocalJob().remote_mount("/a"),
    ):
        with pytest.raises(NotImplementedError, match="mounts no file systems"):
            mount()


def test_spans_are_in_the_profile_of_what_runs() -> None:
    from torch.autograd.profiler import profile  # torch.profiler takes a second to begin

    @traced
    def compute(x: int) -> int:
        return x + 1

    @traced(name="waits")
    async def wait(x: int) -> int:
        return x + 2

    with profile(use_kineto=False) as recorded, span("all"):
        assert (compute(1), asyncio.run(wait(1))) == (2, 3)
    assert {"all", "compute", "waits"} <= {event.name for event in recorded.function_events}


def test_a_meter_counts() -> None:
    pytest.importorskip("opentelemetry.metrics")
    get_meter().create_counter("steps").add(1)


def test_a_mesh_as_a_table(procs_here: ProcMesh) -> None:
    assert procs_here.to_table().splitlines() == [
        "         gpus=0    gpus=1",
        "lines=0  0.gpu[0]  0.gpu[1]",
        "lines=1  0.gpu[2]  0.gpu[3]",
    ]
    assert procs_here.slice(lines=0).to_table().splitlines() == ["gpus=0    gpus=1", "0.gpu[0]  0.gpu[1]"]
    assert procs_here.slice(lines=0, gpus=0).to_table().strip() == "0.gpu[0]"


def test_names_are_found_from_the_top() -> None:
    for name in monarch_nb.__all__:
        assert getattr(monarch_nb, name) is not None
    for name in monarch_nb.actor.__all__:
        assert getattr(monarch_nb.actor, name) is not None
    assert os.path.basename(monarch_nb.job.DEFAULT_JOB_PATH) == "job_state.pkl"
