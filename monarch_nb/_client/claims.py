"""Controllers that hold the claim to a name, before there is a mesh on them."""

from __future__ import annotations

from contextlib import suppress

from monarch_nb._client import launch, spare
from monarch_nb._client.session import Session
from monarch_nb._protocol.claims import ClaimNote
from monarch_nb._protocol.programs import ClaimName, ShutDown
from monarch_nb.exceptions import MeshError, NameTaken


def claimed(name: str, *, has_ranks: bool = True) -> Session:
    """Return a session with a controller that holds the claim to a name exclusively.

    Args:
        has_ranks: whether ranks are going to run beside it.

    Raises:
        NameTaken: if another controller has it.
    """
    claim = launch.find_claim(name)
    if claim is None:
        connection = spare.take_spare(has_ranks=has_ranks)
        session = Session.connect(connection)
        try:
            if session.request(ClaimName(launch.claim_path(name))):
                return session
        except BaseException:
            abandon(session)
            raise
        session.close()
        spare.put_back(connection)
        claim = launch.find_claim(name) or ClaimNote()
    raise NameTaken(
        f"{launch.describe_claim(name, claim)}. Attach to it when it runs: %mesh start {name}; or "
        "choose another name"
    )


def abandon(session: Session) -> None:
    """End a controller that no mesh was created on."""
    try:
        with suppress(MeshError):
            session.request(ShutDown())
    finally:
        session.close()
