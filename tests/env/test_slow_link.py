"""A host behind a link that is really slow asks its own package index."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from environments import bare
from namespaces import Namespaces, run, why_not
from runtime import make_runtime, result_of
from test_package_index import TOOLS, install_three

from monarch_nb._sync.env.package_index import MIN_BYTES

RATE = "tc qdisc add dev {name} root tbf rate 160mbit burst 256kb latency 400ms"
"""20 MB/s towards the host."""
INIT = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", "echo; sleep 100000 & wait")


@pytest.fixture
def host() -> Iterator[str]:
    """The pid of a process in a network namespace behind a slow link, and in a PID namespace: memory there
    can't be read from here, so that bytes take the link.
    """
    if why_not():
        pytest.skip(why_not())
    found = Namespaces(1, net=92)
    (name,) = found.names
    try:
        run(RATE.format(name=name))
    except (OSError, subprocess.CalledProcessError) as error:
        found.close()
        pytest.skip(f"no slow link can be made here: {error}")
    init = subprocess.Popen(["ip", "netns", "exec", name, *INIT], stdout=subprocess.PIPE)
    assert init.stdout is not None and init.stdout.readline() == b"\n"
    (inside,) = psutil.Process(init.pid).children()
    yield str(inside.pid)
    init.kill()
    init.communicate()
    found.close()


def test_what_its_index_has_is_not_sent(host: str, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path / "venv")
    wheels = install_three(runtime, tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bash_profile").write_text(
        f"export UV_FIND_LINKS={wheels} UV_OFFLINE=1 UV_CACHE_DIR={tmp_path}/uv PATH={TOOLS}:$PATH\n"
    )  # what a host's user has written there
    clusters = tmp_path / "monarch_nb" / "clusters.toml"
    clusters.parent.mkdir()
    there = (
        f"env HOME={home} MONARCH_NB_STORE={tmp_path}/there nsenter --target {host} --net --pid --mount --"
    )
    clusters.write_text(
        f'[slow]\nengine = "command"\nhosts = ["behind"]\n[slow.command]\nstart = "{there}"\n'
    )
    clusters.chmod(0o600)
    env = {**bare(), "MONARCH_NB_STORE": f"{tmp_path}/here", "XDG_CONFIG_HOME": str(tmp_path)}
    program = str(Path(__file__).with_name("slow_link_program.py"))
    found = result_of([runtime.python, program, "slow"], env, tmp_path, 220)
    assert found["done"], found["problem"]
    assert 2 * MIN_BYTES <= found["index"] < 3 * MIN_BYTES, "one of three is the same there"
    assert found["index"] + found["sent"] <= found["all"]
    assert " MiB from its package index, " in found["lines"][0]
    (said,) = [step for step in found["steps"] if "index" in step]
    assert re.fullmatch(
        r"[\d.]+ .?i?B/s from here: hosts ask their package indexes first, [\w. ]+ at most", said
    ), said
    assert not any("\x1b" in line for line in found["lines"])
    assert found["prefix"].startswith(f"{tmp_path}/there/")
