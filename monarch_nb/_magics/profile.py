"""`%%mesh --profile` and `--memory`: the request, and the display below the cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_nb._commands.parser import Namespace
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh import CellResult, Mesh
    from monarch_nb.profile import ProfileRequest


def request_of(mesh: Mesh, ranks: tuple[int, ...], arguments: Namespace) -> ProfileRequest | None:
    """Return the request for a profile in a cell's arguments; None if they ask for none.

    Raises:
        MeshUsageError: if it can't be had.
    """
    if arguments.profile is None and not arguments.memory:
        if arguments.profile_ranks is not None or arguments.profile_shapes or arguments.profile_stacks:
            raise MeshUsageError(
                "%%mesh --profile-ranks, --profile-shapes and --profile-stacks go with --profile"
            )
        return None
    if arguments.background:
        raise MeshUsageError(
            "%%mesh takes --async or a profile, not both: the profile is written when the cell has ended"
        )
    from monarch_nb.profile.request import ProfileRequest, check_request

    chosen = ranks if arguments.profile_ranks is None else mesh.select(arguments.profile_ranks)
    request = ProfileRequest(
        chosen, trace=arguments.profile is not None, memory=arguments.memory, shapes=arguments.profile_shapes,
        stacks=arguments.profile_stacks, file=arguments.profile or "", num_top=arguments.top,
    )  # fmt: skip
    return check_request(request, ranks)


def show_profile(mesh: Mesh, result: CellResult, request: ProfileRequest) -> None:
    """Fetch a cell's profile and show it."""
    from IPython.display import display

    from monarch_nb.profile import collect

    profile = mesh.last_profile = collect(mesh, result, request)
    if profile.text():
        display(profile)
