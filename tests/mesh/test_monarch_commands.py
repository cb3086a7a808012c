"""What a Monarch program runs on hosts beside actors: commands, shells, forwarded ports."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.actor import this_host, this_proc
from monarch_nb.job import LocalJob, PortForwarder, exec_command, shell

T = 60


def test_a_command_runs_on_each_place_and_its_worst_exit_code_comes_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts = LocalJob().state().hosts
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys\nprint('gpu', os.environ['MONARCH_RANK_gpus'], os.environ['A'])\nsys.exit(3 "
        "* int(os.environ['MONARCH_RANK_gpus']))\n"
    )
    assert exec_command(hosts, [str(script)], env={"A": "x"}, per_host={"gpus": 2}).get(T) == 3
    assert sorted(capfd.readouterr().out.splitlines()) == ["gpu 0 x", "gpu 1 x"]
    with pytest.raises(ValueError, match="a command as a list of words"):
        exec_command(hosts, "nvidia-smi -L")


def test_what_a_command_writes_goes_into_files(tmp_path: Path) -> None:
    place = tmp_path / "$SUBDIR"
    assert (
        exec_command(
            this_host(),
            ["sh", "-c", "pwd; echo bad >&2"],
            workdir="/",
            output_dir=str(place),
            per_host={"gpus": 1},
        ).get(T)
        == 0
    )
    assert (tmp_path / "gpus_0" / "stdout.txt").read_text() == "/\n"
    assert (tmp_path / "gpus_0" / "stderr.txt").read_text() == "bad\n"


def serve_upper() -> int:
    """Serve one visitor on a free port, in upper case; return the port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        visitor = server.accept()[0]
        with visitor, visitor.makefile("rb") as file:
            visitor.sendall(file.read().upper())
        server.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_a_port_of_a_rank_is_reached_from_the_program() -> None:
    procs = this_host().spawn_procs()
    forwarder: Any = this_proc().spawn("forwarder", PortForwarder)
    try:
        there = procs.execute(serve_upper).get(T).item()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            here = probe.getsockname()[1]
        forwarder.forward.call_one(procs, there, this_proc(), f"127.0.0.1:{here}").get(T)
        with socket.create_connection(("127.0.0.1", here), T) as visitor:
            visitor.sendall(b"abc" * 100_000)
            visitor.shutdown(socket.SHUT_WR)
            with visitor.makefile("rb") as file:
                assert file.read() == b"ABC" * 100_000
        for wrong in ("7000", "host:", "host:0"):
            with pytest.raises(Exception, match=r"ValueError: .*src_address"):
                forwarder.forward.call_one(procs, there, this_proc(), wrong).get(T)
    finally:
        forwarder.stop().get(T)
        procs.stop().get(T)


def test_a_shell_on_a_host_takes_what_is_typed(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    read_end, write_end = os.pipe()
    with open(read_end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        os.write(write_end, b"tty; echo a''bc $X; exit 5\n")
        assert shell(this_host(), env={"X": "given", "SHELL": "/bin/sh"}) == 5
    os.close(write_end)
    written = capfdbinary.readouterr().out
    assert b"/dev/pts/" in written and b"abc given" in written
