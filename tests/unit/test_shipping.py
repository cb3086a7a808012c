"""An environment on its way to hosts: how far it is, and what a dry run says of each part."""

from __future__ import annotations

from monarch_nb._sync.env.manifest import FILE, LINK, Entry, Part
from monarch_nb.mesh.shipping.plan import plan_lines, planned
from monarch_nb.mesh.shipping.progress import BEHIND_BYTES, Progress

MIB = 1 << 20


def part(name: str, version: str, **contents: int) -> Part:
    entries = [Entry(f"env/{name}/{sha}", FILE, size, sha) for sha, size in contents.items()]
    return Part(name, version, (*entries, Entry(f"env/{name}/link", LINK, 0, "a")))


def test_a_host_that_is_behind_is_named_until_it_has_caught_up_or_is_left_out() -> None:
    progress = Progress()
    assert progress.text() == "comparing what hosts have"
    progress.begin_sending(dict.fromkeys((1, 2, 3), 4 * BEHIND_BYTES))
    assert progress.behind() == () and progress.text().startswith("0 bytes of 384 MiB")
    progress.took(1, 2 * BEHIND_BYTES)
    progress.took(2, 2 * BEHIND_BYTES)
    assert progress.behind() == (3,)
    assert progress.text().startswith("128 MiB of 384 MiB, ")
    assert progress.text().endswith("left; behind: host 3 (128 MiB to go)")
    html = progress.mimebundle()["text/html"]
    assert f"max='{384 * MIB}' value='{128 * MIB}'" in html and "behind: host 3" in html
    progress.left_out(3)
    assert progress.behind() == () and progress.num_bytes == 256 * MIB
    progress.step("trying it")
    assert progress.text() == "trying it"


def test_each_part_has_its_bytes_its_source_and_its_reason() -> None:
    parts = [
        part("einops", "0.8.1", a=2 * MIB),
        part("numpy", "2.1.0", b=10 * MIB, c=8 * MIB),
        part("torch", "2.13.0", d=1 * MIB, e=3 * MIB),
        part("rich", "13.0", f=MIB),
        part("rest", "", g=5),
    ]
    lacking = {"a": 2 * MIB, "b": 10 * MIB, "c": 8 * MIB, "d": 1 * MIB, "g": 5}
    found = planned(parts, lacking, {"numpy": "2.0.1", "torch": "2.13.0"})
    assert sum(each.sent_bytes for each in found) == sum(lacking.values())
    assert plan_lines(found) == [
        "numpy 2.1.0, 18 MiB from here: 2.0.1 is there",
        "einops 0.8.1, 2 MiB from here: it isn't there",
        "torch 2.13.0, 1 MiB of 4 MiB from here and the host: it's there, in the host's own environment",
        "rest, 5 bytes from here: it belongs to no package",
        "1 part, 1 MiB: on the host already",
    ]


def test_what_several_parts_share_goes_once_and_small_parts_are_one_line() -> None:
    parts = [part(f"p{n}", "1", a=MIB, **{f"own{n}": 10 + n}) for n in range(20)]
    found = planned(parts, {"a": MIB} | {f"own{n}": 10 + n for n in range(20)}, {})
    assert sum(each.sent_bytes for each in found) == MIB + sum(range(10, 30))
    lines = plan_lines(found)
    assert len(lines) == 9 and lines[-1].startswith("12 more, ")
    assert plan_lines(planned(parts, {}, {})) == []


def test_a_pack_that_a_host_got_before_it_was_left_out_is_no_error() -> None:
    progress = Progress()
    progress.begin_sending({1: 100, 2: 100})
    progress.left_out(2)  # the thread of one pack has found it lost, while that of another was just done
    progress.took(2, 40)
    progress.took(1, 60)
    assert (progress.sent_bytes, progress.num_bytes) == (60, 100)
    progress.found_elsewhere({1: 30})
    assert (progress.sent_bytes, progress.num_bytes) == (60, 70)
