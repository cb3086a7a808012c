"""Machines without a Python are given the environment by `sh` and `tar`; a host joins from there."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sshd
from bare_host import BareHost, bare_host
from environments import OF_DISTRIBUTION, Made, bare, needs_own_interpreter
from runtime import make_runtime
from small_disk import small_disk

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.shipping.channel import shell_command

PROGRAM = Path(__file__).with_name("bare_program.py")
T = 280
SENT = re.compile(r"environment (\w{6}), \d+ packages, [\d.]+ MiB: ([\d.]+) (KiB|MiB) sent, verified")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_runtime(tmp_path_factory.mktemp("runtime") / "venv")


@pytest.fixture
def host(tmp_path: Path) -> BareHost:
    return bare_host(tmp_path / "host")


def run(runtime: Made, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program by the interpreter of the environment, in a folder of its own."""
    (folder / "work").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "config" / "monarch_nb").mkdir(parents=True, exist_ok=True)
    profiles = folder / "config" / "monarch_nb" / "clusters.toml"
    profiles.write_text(f'[hand]\nengine = "command"\nhosts = 1\nports = "{port}"\n')
    profiles.chmod(0o600)
    env = {
        **bare(),
        "MONARCH_NB_STORE": str(folder / "store"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "run"),
    }
    return subprocess.run(
        [runtime.python, *command], capture_output=True, text=True, env=env, cwd=folder / "work", timeout=T
    )


def sync(runtime: Made, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from monarch_nb._cli import main; sys.exit(main(sys.argv[1:]))"
    return run(runtime, folder, "-c", program, "sync", "--env", *arguments)


@pytest.fixture(scope="module")
def joined(runtime: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("joined")
    host = bare_host(folder / "host")
    ended = run(runtime, folder, str(PROGRAM), f"bare-{os.getpid()}", host.command)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    found["left"] = host.files()
    return found


@needs_own_interpreter
def test_a_machine_without_python_joins_from_what_it_was_sent(joined: dict[str, Any]) -> None:
    assert joined["problem"] == ""
    sent = SENT.search(joined["sent"])
    assert sent is not None and sent[3] == "MiB", joined["sent"]
    prefix, hostname, numpy, one_more, answer = joined["where"]
    assert hostname == "bare"
    assert prefix.startswith("/root/.cache/monarch_nb/store/envs/")
    assert numpy.startswith(prefix) and one_more.startswith(prefix)
    assert answer == 42, "the workspace is there, too"


@needs_own_interpreter
def test_it_is_synced_as_any_other_host(joined: dict[str, Any]) -> None:
    assert "is there already" in joined["same"] or SENT.search(joined["same"]), joined["same"]
    assert joined["done"], joined["more"]
    lines = [line for line in joined["more"].splitlines() if "environment" in line]
    assert len(lines) == 2, joined["more"]
    small = [found for line in lines if (found := SENT.search(line))]
    assert all(found[3] == "KiB" or float(found[2]) < 20 for found in small), lines


@needs_own_interpreter
def test_nothing_is_left_beside_the_store(joined: dict[str, Any]) -> None:
    assert ".cache" in joined["left"]
    assert not [name for name in joined["left"] if re.fullmatch(r"monarch_nb-\w{32}", name)]


@needs_own_interpreter
def test_a_link_at_the_notebooks_path_and_what_a_second_time_takes(
    runtime: Made, host: BareHost, tmp_path: Path
) -> None:
    dry = sync(runtime, tmp_path, "--to", host.command, "--dry-run")
    assert (dry.returncode, host.files()) == (0, []), dry.stderr
    assert "at most" in dry.stdout
    first = sync(runtime, tmp_path, "--to", host.command, "--same-path")
    assert first.returncode == 0, first.stderr + first.stdout
    assert f"at {runtime.prefix}, too" in first.stdout
    output = host.run(runtime.python, "-c", "import sys, numpy; print(sys.prefix, numpy.__file__)")
    assert output.stdout.count(str(runtime.prefix)) == 2, output.stderr
    second = sync(runtime, tmp_path, "--to", host.command, "--same-path")
    assert second.returncode == 0, second.stdout
    assert "is there already" in second.stdout or SENT.search(second.stdout), second.stdout
    assert host.files() == [".cache", runtime.prefix.parts[2]], "the store, and the folder of the link"


@needs_own_interpreter
def test_a_machine_that_one_logs_in_to(runtime: Made, host: BareHost, tmp_path: Path) -> None:
    if sshd.why_not():
        pytest.skip(sshd.why_not())
    enter = f'ForceCommand {host.command} sh -c "$SSH_ORIGINAL_COMMAND"\n'
    server = sshd.Sshd(tmp_path / "sshd", ["box"], also=enter)
    try:
        first = sync(runtime, tmp_path, "--to", f"ssh -F {server.config} box")
        assert first.returncode == 0, first.stderr + first.stdout
        sent = SENT.search(first.stdout)
        assert sent is not None and sent[3] == "MiB", first.stdout
        there = (host.root / "root/.cache/monarch_nb/store/envs").glob(f"{sent[1]}*")
        (prefix,) = [path for path in there if path.is_dir()]
        found = host.run(
            f"/{prefix.relative_to(host.root)}/env/bin/python", "-c", "import numpy; print(numpy)"
        )
        assert "/root/.cache/monarch_nb/store/envs/" in found.stdout, found.stderr
        stranger = sync(runtime, tmp_path, "--to", f"ssh -F {server.config} -o User=nobody box")
        assert (
            stranger.returncode == 1 and "Permission denied (publickey)" in stranger.stdout + stranger.stderr
        )
        assert "Traceback" not in stranger.stderr
    finally:
        server.close()
    assert host.files() == [".cache"]


@needs_own_interpreter
def test_a_disk_that_is_full_is_named_and_the_next_sync_goes_on(
    runtime: Made, host: BareHost, tmp_path: Path
) -> None:
    with small_disk(host.root / "root" / ".cache", "100m") as disk:
        output = sync(runtime, tmp_path, "--to", host.command)
        assert output.returncode == 1
        assert re.search(r"not there, .* are needed, .* free: monarch-nb sync --gc", output.stdout), (
            output.stdout
        )
        assert not list((disk.path / "monarch_nb" / "store" / "envs").iterdir())
    assert host.files() == [".cache"], "what was unpacked is removed"


@needs_own_interpreter
def test_what_cannot_be_is_one_sentence(runtime: Made, host: BareHost, tmp_path: Path) -> None:
    output = sync(runtime, tmp_path, "--to", "/no/such/command")
    assert (output.returncode, "/no/such/command: No such file" in output.stdout) == (1, True), output
    output = sync(runtime, tmp_path, "--to", f"{host.command} no-such-shell")
    assert output.returncode == 1
    assert "no-such-shell" in output.stdout
    (host.root / "bin" / "tar").unlink()
    output = sync(runtime, tmp_path, "--to", host.command)
    assert "there is no tar there: install it" in output.stdout
    for machine in ("", "'"):
        with pytest.raises(MeshUsageError, match="--to"):
            shell_command(machine, "true")
    assert host.files() == []


@pytest.mark.skipif(not OF_DISTRIBUTION, reason="this Python isn't the distribution's")
def test_the_distributions_python_cannot_be_sent_and_what_to_do_is_said(
    runtime: Made, tmp_path: Path
) -> None:
    output = sync(runtime, tmp_path, "--to", "no-such-machine")
    assert output.returncode == 1 and "Traceback" not in output.stderr
    assert "belongs to its machine" in output.stderr and "uv venv --managed-python" in output.stderr


def test_commands_of_machines() -> None:
    assert shell_command("docker exec -i box", "exit 3")[-4:] == ["box", "sh", "-c", "exit 3"]
    assert shell_command("ssh -p 22 box", "exit 3") == ["ssh", "-p", "22", "box", "sh -c 'exit 3'"]
    assert shell_command("on box {script}", "exit 3") == ["on", "box", "sh -c 'exit 3'"]
    assert shell_command("box", "exit 3")[-2:] == ["box", "sh -c 'exit 3'"]
