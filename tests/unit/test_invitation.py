"""Invitations, knocks and answers: what is none is refused, and never unpickled."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._wire.invitation import Admission, Invitation, InvitationError, Knock
from monarch_nb._wire.keys import KeyPair

KEYS = KeyPair.new()
GOOD = Invitation("big", 3, ("tcp://10.0.0.5:29400", "tcp://[fd00::5]:29400"), KEYS.public, *KEYS, places=4)


def test_they_are_read_as_they_were_written() -> None:
    assert Invitation.from_json(GOOD.to_json()) == GOOD
    knock = Knock(KEYS.public, "he2", 3, "tcp://10.0.0.5:29400", 1)
    assert Knock.from_json(knock.to_json()) == knock
    assert Admission.from_json(Admission(2, 1, "he2").to_json()) == Admission(2, 1, "he2")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"addresses": []},
        {"addresses": ["ipc:///x"]},
        {"controller_key": "short"},
        {"controller_key": 7},
        {"more": 1},
        {"guest_secret": "\n" * 40},
    ],
)
def test_an_invitation_with_a_fault_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvitationError):
        Invitation.from_json(json.dumps({**json.loads(GOOD.to_json()), **change}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"7",
        b"[" * 60_000,
        b"\xff\xfe",
        pickle.dumps({"public": KEYS.public}),
        b'{"public": "x"}',
        b"{" + b" " * (1 << 17) + b"}",
    ],
    ids=["nothing", "a list", "a number", "deep", "not text", "a pickle", "a part", "too long"],
)
def test_what_is_no_knock_is_refused(text: bytes) -> None:
    with pytest.raises(InvitationError):
        Knock.from_json(text)


@given(
    st.dictionaries(
        st.sampled_from(["public", "node", "wire_version", "address", "place", "x"]),
        st.none() | st.booleans() | st.integers() | st.text(),
    )
)
def test_no_knock_does_more_than_raise(fields: dict[str, object]) -> None:
    try:
        found = Knock.from_json(json.dumps(fields).encode())
    except InvitationError:
        return
    assert len(found.public) == 40 and found.node.isprintable()
