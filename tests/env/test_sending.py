"""The environment of a program on its hosts: real host processes, agents, stores and zygotes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from environments import Made, bare
from runtime import ROOT, add_runtime, make_runtime, result_of
from small_disk import small_disk

from monarch_nb._sync.env.store import Store
from monarch_nb.mesh.shipping.host_broadcast import Refused, Trust, broadcast
from monarch_nb.mesh.shipping.packs import packs_of
from monarch_nb.mesh.shipping.receiving import Receiver, sums_of

FULL = (
    "no room left at {}/hosts/host1/store: monarch-nb sync --gc there frees what nobody uses; "
    "MONARCH_NB_STORE=DIRECTORY is another place"
)
NUM_PACKS = 10_000 if os.environ.get("MONARCH_NB_HOSTILE") == "full" else 1_500
PROGRAM = Path(__file__).with_name("sending_program.py")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_runtime(tmp_path_factory.mktemp("runtime") / "venv")


def run(runtime: Made, scenario: str, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    env = {**bare(), "MONARCH_NB_STORE": str(folder / "home" / "store")}
    return result_of([runtime.python, str(PROGRAM), scenario, str(folder)], env, folder, 220)


@pytest.fixture(scope="module")
def life(runtime: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(runtime, "whole_life", tmp_path_factory.mktemp("life") / "hosts")


def test_a_dry_run_says_what_goes_and_writes_nothing(life: dict[str, Any]) -> None:
    assert not life["dry"]["done"]
    assert all(sent > 50e6 for sent in life["dry"]["sent"])
    assert life["written"] == ["home"], "the notebook's own cache"
    assert "to send" in life["dry"]["lines"][0]
    numpy = next(line for line in life["dry"]["lines"] if "numpy" in line)
    assert re.search(r"numpy [\d.]+, [\d.]+ MiB from here: it's there, in the host's own env", numpy), numpy
    assert re.search(r"\d+ more, .* from here", "\n".join(life["dry"]["lines"]))


def test_new_ranks_run_in_the_hosts_own_prefix_and_old_ones_as_before(
    life: dict[str, Any], runtime: Made
) -> None:
    first = life["first"]
    assert first["done"], first["problems"]
    assert life["new"] == [f"{prefix}/env" for prefix in first["prefixes"]]
    assert len(set(life["new"])) == 2
    assert life["old"] == life["old after"] == str(runtime.prefix)


def test_restarted_ranks_and_fresh_interpreters_run_in_it_too(life: dict[str, Any]) -> None:
    assert life["restarted"] == life["spawned"] == life["new"][0]


def test_a_second_time_nothing_is_sent_and_a_package_more_is_little(life: dict[str, Any]) -> None:
    assert life["again"]["sent"] == [0, 0]
    assert life["again"]["there"] == [True, True]
    assert life["more"]["id"] != life["first"]["id"]
    assert all(0 < sent < 100_000 for sent in life["more"]["sent"])
    assert life["imported"].startswith(life["more"]["prefixes"][1])


def test_hosts_that_see_the_notebooks_files_get_nothing(life: dict[str, Any], runtime: Made) -> None:
    assert life["in place"]["shared"] == [True, True]
    assert life["in place"]["sent"] == [0, 0]
    assert life["here again"] == str(runtime.prefix)


def test_everything_is_covered(life: dict[str, Any]) -> None:
    assert life["uncovered"] == []


def test_a_host_whose_agent_is_killed_is_named_and_taken_up_again(runtime: Made, tmp_path: Path) -> None:
    found = run(runtime, "killed", tmp_path / "hosts")
    assert not found["first"]["problems"][0]
    assert found["first"]["problems"][1]
    assert not found["first"]["done"]
    assert found["second"]["done"]
    assert 0 < found["second"]["sent"][1] < found["first"]["sent"][1]
    assert found["new"] == [f"{prefix}/env" for prefix in found["second"]["prefixes"]]
    assert found["left"] == [[], []]


def test_hosts_with_one_store_are_sent_things_once(runtime: Made, tmp_path: Path) -> None:
    found = run(runtime, "one_store", tmp_path / "hosts")
    one, other, same = found["undisturbed"]["sent"]
    assert found["undisturbed"]["done"], found["undisturbed"]["problems"]
    assert one == other > 50e6 and same == 0
    assert found["undisturbed new"] == [f"{prefix}/env" for prefix in found["undisturbed"]["prefixes"]]
    assert found["dry"]["sent"] == [one, other, 0]
    first, second, third = found["first"]["problems"]
    assert first and not second and not third, "another host of that store gets it then"
    assert 0 < found["first"]["sent"][2] < one, "and only what the first one hasn't got"
    assert found["all bytes"][0] == found["all bytes"][1]
    assert found["second"]["done"] and found["second"]["sent"] == [0, 0, 0]
    assert found["new"] == [f"{prefix}/env" for prefix in found["second"]["prefixes"]]


def test_a_disk_that_is_full_in_the_middle_is_named_and_gone_on_from(runtime: Made, tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    with small_disk(tmp_path / "hosts" / "host1", "400m"):
        found = run(runtime, "full", tmp_path / "hosts")
    assert found["first"]["problems"] == ["", FULL.format(tmp_path)]
    assert 0 < found["dry"]["sent"][1] < found["first"]["sent"][1], "a dry run says what is still lacking"
    assert found["second"]["done"], found["second"]["problems"]
    assert found["second"]["sent"][1] == found["dry"]["sent"][1]
    assert found["new"] == [f"{prefix}/env" for prefix in found["second"]["prefixes"]]
    assert found["left"] == [[], []]


def test_a_host_that_passes_on_what_is_not_right_is_found(runtime: Made, tmp_path: Path) -> None:
    found = run(runtime, "corrupting", tmp_path / "hosts")
    assert found["first"]["done"], found["first"]["problems"]
    assert found["first"]["corrupting"] == found["hosts"][:1]


def test_what_a_host_has_in_an_environment_of_its_own_is_not_sent(runtime: Made, tmp_path: Path) -> None:
    found = run(runtime, "donors", tmp_path / "hosts")
    assert not found["written dry"]
    assert found["first"]["done"], found["first"]["problems"]
    assert found["first"]["found"][0] > 50e6
    assert found["first"]["sent"][0] < found["first"]["found"][0] / 2
    assert found["dry"]["sent"] == found["first"]["sent"], "a dry run has counted that in"
    assert re.search(r"[\d.]+ MiB were there, [\d.]+ MiB sent, verified", found["first"]["lines"][0])
    assert found["new"] == f"{found['first']['prefixes'][0]}/env"


def sync_by(runtime: Made, folder: Path) -> dict[str, Any]:
    """Run a program with a named mesh that syncs its environment; return what it has found."""
    (folder / "repository").mkdir()
    env = {
        **bare(),
        "MONARCH_NB_STORE": str(folder / "store"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "run"),
    }
    command = [runtime.python, str(PROGRAM.with_name("sync_program.py")), f"env-{os.getpid()}"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=folder / "repository", timeout=220
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_a_conda_environment_with_packages_of_pip_is_what_restarted_ranks_run_in(
    conda: Made, tmp_path: Path
) -> None:
    conda.install(conda.wheel(tmp_path, "alpha", "1.0"))
    found = sync_by(add_runtime(conda), tmp_path)
    assert found["before"] == found["living"] == [str(conda.prefix)] * 2
    assert "sent, verified; new ranks run in it" in found["said"], found["said"]
    assert len(set(found["restarted"])) == 1
    prefix = Path(found["restarted"][0])
    assert prefix.is_relative_to(tmp_path / "store" / "envs")
    output = subprocess.check_output([prefix / "bin" / "prefixdemo"], text=True, env=bare())
    assert f"binary says {prefix}/etc/prefixdemo.conf len={len(f'{prefix}/etc/prefixdemo.conf')}" in output
    assert f"conf says controller={prefix}\n" in output
    where = Made(prefix).run("import alpha, meshpure; print(alpha.__file__, meshpure.__file__)")
    assert where.count(str(prefix)) == 2


def test_a_named_mesh_says_what_was_done_and_what_comes_next(runtime: Made, tmp_path: Path) -> None:
    found = sync_by(runtime, tmp_path)
    assert "to send" in found["dry"]
    assert not (tmp_path / "store" / "envs").exists() or found["said"]
    assert "sent, verified; new ranks run in it" in found["said"], found["said"]
    assert "ranks 0-1 run what they were started with: %mesh restart" in found["said"]
    assert found["done"]
    assert found["before"] == found["living"] == [str(runtime.prefix)] * 2
    assert len(set(found["restarted"])) == 1
    assert found["restarted"][0].startswith(str(tmp_path / "store" / "envs"))
    assert "is there already; in use" in found["again"]
    assert "%mesh restart" not in found["again"]


def test_a_terminal_exports_an_environment_and_cleans_the_store(runtime: Made, tmp_path: Path) -> None:
    env = {**bare(), "MONARCH_NB_STORE": str(tmp_path / "store")}
    command = [
        runtime.python,
        "-c",
        "import sys; from monarch_nb._cli import main; sys.exit(main(sys.argv[1:]))",
        "sync",
    ]
    output = subprocess.run([*command, "--gc"], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert (output.returncode, "there's no store at" in output.stderr) == (1, True), output
    output = subprocess.run(
        [*command, "--export", str(tmp_path / "away")], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert output.returncode == 0, output.stderr
    python = output.stdout.strip().rpartition(": ")[2]
    assert python.startswith(str(tmp_path / "away" / "envs"))
    where = subprocess.check_output(
        [python, "-c", "import monarch_nb, sys; print(monarch_nb.__file__, sys.prefix)"],
        text=True,
        env=bare(),
        cwd=tmp_path,
    )
    assert where.count(str(tmp_path / "away")) == 2
    cleaned = subprocess.run(
        [*command, "--gc"],
        capture_output=True,
        text=True,
        env={**env, "MONARCH_NB_STORE": str(tmp_path / "away")},
        cwd=tmp_path,
    )
    assert "0 environments, 0 files" in cleaned.stdout, "it was made just now"


# --- packs


def test_packs_have_everything_once_and_in_order() -> None:
    draw = random.Random(5)
    for limit in (1, 7, 100):
        sizes = {
            f"{i:064x}": draw.choice([0, 1, limit - 1, limit, limit + 1, 3 * limit + 2]) for i in range(40)
        }
        seen: dict[str, int] = {}
        for pack in packs_of(sizes, limit):
            assert pack.num_bytes <= limit
            for each in pack.slices:
                assert seen.get(each.sha256, 0) == each.offset
                seen[each.sha256] = each.offset + each.length
        assert seen == sizes
    assert list(packs_of({})) == []


def test_thousands_of_broken_packs_put_nothing_wrong_into_a_store(tmp_path: Path) -> None:
    draw = random.Random(int(os.environ.get("MONARCH_NB_HOSTILE_SEED", "9")))
    contents = {
        hashlib.sha256(data).hexdigest(): data for data in (draw.randbytes(n) for n in (0, 1, 10, 30, 75))
    }
    store = Store(str(tmp_path / "store"))
    packs = list(packs_of({name: len(data) for name, data in contents.items()}, 32))
    for _ in range(NUM_PACKS):
        receiver = Receiver(store, {})
        pack = draw.choice(packs)
        data = bytearray(b"".join(contents[s.sha256][s.offset : s.offset + s.length] for s in pack.slices))
        sums = sums_of(pack, memoryview(data))
        if draw.random() < 0.5 and data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            assert receiver.take_pack(pack, memoryview(data), sums), "what was changed on its way is found"
        receiver.take_pack(pack, memoryview(data)[: draw.choice([len(data), draw.randint(0, len(data))])])
    for folder in os.scandir(f"{store.root}/objects"):
        for entry in os.scandir(folder.path):
            with open(entry.path, "rb") as file:
                assert hashlib.sha256(file.read()).hexdigest() == folder.name + entry.name
    store.close()


# --- broadcast to hosts


def test_each_host_gets_it_once_and_most_of_them_from_another() -> None:
    trust: Trust[int] = Trust()
    copied: list[tuple[int | None, int]] = []

    def copy(holder: int | None, target: int) -> tuple[tuple[str, ...], str]:
        copied.append((holder, target))
        return (), ""

    broadcast(range(1, 17), trust, copy)
    assert sorted(target for _, target in copied) == list(range(1, 17))
    had = {None}
    for _holder, target in copied:
        had.add(target)
    assert all(holder in had for holder, _ in copied)


def test_what_the_notebook_itself_has_wrong_ends_it() -> None:
    with pytest.raises(Refused):
        broadcast([1, 2, 3], Trust(), lambda holder, target: (("abc",), ""))


def test_a_host_that_fails_is_left_out_and_the_others_go_on() -> None:
    trust: Trust[int] = Trust()
    done = []

    def copy(holder: int | None, target: int) -> tuple[tuple[str, ...], str]:
        if target == 2:
            raise ConnectionError("gone")
        done.append(target)
        return (), ""

    broadcast([1, 2, 3, 4], trust, copy)
    assert sorted(done) == [1, 3, 4]
    assert trust.lost == {2: "ConnectionError: gone"}
    broadcast([2], trust, copy)
    assert sorted(done) == [1, 3, 4]


def test_a_holder_that_is_wrong_twice_feeds_nobody() -> None:
    trust: Trust[int] = Trust()
    fed: list[tuple[int | None, int]] = []

    def copy(holder: int | None, target: int) -> tuple[tuple[str, ...], str]:
        fed.append((holder, target))
        return (("abc",) if holder == 1 else ()), ""

    for _ in range(20):
        broadcast([1, 2, 3, 4, 5], trust, copy)
    assert trust.corrupting() in ([1], [])
    assert sum(holder == 1 for holder, _ in fed) <= 4
    assert sum(target == 5 for _, target in fed) >= 20


def test_nothing_of_this_package_is_taken_from_here(life: dict[str, Any]) -> None:
    assert str(ROOT) not in life["imported"]
