"""Differences between hosts and this program, determined in the background when the program has started a
mesh or attached to one: packages, Python itself, and earlier copies of the workspace.

What is found is said in one line, and stands in the mesh's status, where panel and card show it. Hosts that
run this program's own environment, as those of one machine do, answer at once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from monarch_nb._client.session import Session
from monarch_nb._client.waiting import wait_simply
from monarch_nb._protocol.environment import GetPackages, HostPackages, SetDifferences
from monarch_nb._shape import name_hosts
from monarch_nb._sync import copies_behind
from monarch_nb._transport.pending import Reply, asks_quietly
from monarch_nb._wire import address
from monarch_nb._wire.process import files_id
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb._sync.env.packages import PackageDigest

WAIT_S = 90.0
_NUM_NAMES = 3
_ENVIRONMENT = "%mesh sync --env, or see %mesh diff --env --hosts"
_known: weakref.WeakKeyDictionary[Session, dict[int, str]] = weakref.WeakKeyDictionary()
"""Differences of hosts, by session; "" for hosts that are being compared for the first time."""
_again: weakref.WeakKeyDictionary[Session, bool] = weakref.WeakKeyDictionary()
"""Sessions whose hosts are being compared again; whether that was asked for once more meanwhile."""
_again_lock = threading.Lock()


def compare_later(session: Session, hosts: Iterable[int]) -> threading.Thread | None:
    """Compare hosts that haven't been compared yet, in a thread of its own; return the thread."""
    known = _known.setdefault(session, {})
    new = sorted(set(hosts) - set(known))
    known.update(dict.fromkeys(new, ""))
    return _begin_comparison(session, new) if new else None


def compare_newcomers(session: Session, hosts: Iterable[int]) -> threading.Thread | None:
    """Compare hosts that have joined, or replaced a lost one, regardless of earlier results."""
    known, new = _known.setdefault(session, {}), sorted(hosts)
    known.update(dict.fromkeys(new, ""))
    return _begin_comparison(session, new) if new else None


def compare_again(session: Session) -> threading.Thread | None:
    """Compare hosts that differed again, after a sync. While that goes on, further calls have it done once
    more afterwards: it costs each host up to a second, and syncs may follow each other faster.
    """
    if not any(_known.get(session, {}).values()):
        return None
    with _again_lock:
        is_running = session in _again
        _again[session] = is_running
    return None if is_running else _in_a_thread(_compare_again, session)


def _compare_again(session: Session) -> None:
    is_wanted = True
    while is_wanted:
        _compare(session, sorted(host for host, text in _known[session].items() if text))
        with _again_lock:
            if is_wanted := _again.pop(session):
                _again[session] = False


def _begin_comparison(session: Session, hosts: Sequence[int]) -> threading.Thread:
    return _in_a_thread(_compare, session, hosts)


def _in_a_thread(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name="monarch_nb-compare", daemon=True)
    thread.start()
    return thread


def _compare(session: Session, hosts: Sequence[int]) -> None:
    asks_quietly.set(True)
    with suppress(Exception):  # the mesh or this program ends: nobody waits for the answer
        found, known = differences(session, hosts), _known[session]
        new = {host: text for host, text in found.items() if text != known.get(host, "")}
        known.update(found)
        if new:
            session.request(SetDifferences(new))
        for text in sentences(new):
            print(text, file=sys.stderr, flush=True)


def differences(session: Session, hosts: Sequence[int]) -> dict[int, str]:
    """Return the differences between hosts and this program, in words and with what to type; "" for hosts
    without any.

    Hosts that don't say what they have are left out.
    """
    question = GetPackages(files_id(), sys.prefix)
    replies = {host: session.transport.request(address.host_proc(host), question) for host in hosts}
    limit = time.monotonic() + WAIT_S
    answers = {host: answer for host, reply in replies.items() if (answer := _read(reply, limit)) is not None}
    found = dict.fromkeys(answers, "")
    apart = {host: answer for host, answer in answers.items() if not answer.is_same}
    if apart:
        found |= _of_packages(apart)
        for host, text in _of_workspace(session, list(apart)).items():
            found[host] = "; ".join(filter(None, [found[host], text]))
    return found


def sentences(found: Mapping[int, str]) -> list[str]:
    """Return a line for each kind of difference, with the hosts that have it.

    >>> sentences({0: "", 1: "einops isn't there", 2: "einops isn't there"})
    ["hosts 1-2 differ from here: einops isn't there"]
    """
    by_text: dict[str, list[int]] = {}
    for host, text in found.items():
        if text:
            by_text.setdefault(text, []).append(host)
    return [
        f"{name_hosts(which)} differ{'s' * (len(which) == 1)} from here: {text}"
        for text, which in by_text.items()
    ]


def _read(reply: Reply[HostPackages], limit: float) -> HostPackages | None:
    if not wait_simply(reply, limit):
        return None
    with suppress(MeshError):
        return reply.read()
    return None


def _of_packages(answers: Mapping[int, HostPackages]) -> dict[int, str]:
    # imports SQLite and more, which no start waits for
    from monarch_nb._sync.env.errors import EnvironmentSyncError
    from monarch_nb._sync.env.installed import installed_here
    from monarch_nb._sync.env.packages import PackageDigest

    try:
        here = installed_here()
    except EnvironmentSyncError:  # a distribution's Python: `%mesh sync --env` explains why it can't be sent
        return {}
    found = {}
    for host, answer in answers.items():
        there = {n: PackageDigest(p.version, p.digest, p.edited) for n, p in answer.packages.items()}
        found[host] = package_text(here, there)
    return found


def package_text(here: Mapping[str, PackageDigest], there: Mapping[str, PackageDigest]) -> str:
    """Return the differences in a host's packages, with what to type; "" if there are none. Packages that
    only the host has don't count.
    """
    names = [name for name in sorted(here) if there.get(name) != here[name]]
    if not names:
        return ""
    words = [_word(name, here[name], there.get(name)) for name in names[:_NUM_NAMES]]
    rest = len(names) - _NUM_NAMES
    return ", ".join([*words, *([f"{rest:,} more"] if rest > 0 else [])]) + f": {_ENVIRONMENT}"


def _word(name: str, here: PackageDigest, there: PackageDigest | None) -> str:
    if there is None:
        return f"{name} isn't there"
    if there.version != here.version:
        return f"{name} {there.version} ({here.version} here)"
    return f"{name} {there.version} {'edited by hand' if here.edited or there.edited else 'of another build'}"


def _of_workspace(session: Session, hosts: Sequence[int]) -> dict[int, str]:
    """Return the hosts whose copy of the workspace is outdated."""
    folder, behind = copies_behind(session, os.getcwd(), hosts)
    return dict.fromkeys(behind, f"its copy of {folder} differs from the notebook's: %mesh sync")
