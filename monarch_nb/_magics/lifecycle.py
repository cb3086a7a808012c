"""Verbs about the mesh in use: start, list, attach, detach, use, status, top, stop."""

from __future__ import annotations

import html
from contextlib import suppress
from typing import Any

from monarch_nb._commands import actions
from monarch_nb._commands.clusters import asked_on_engine, script_text
from monarch_nb._commands.parser import Namespace
from monarch_nb._commands.running import refuse_other_job, take_on_group
from monarch_nb._commands.starting import asked_for, describe, plan_of, set_up, start_or_attach
from monarch_nb._display import top as tables
from monarch_nb._magics.missed import show_missed
from monarch_nb._magics.state import State
from monarch_nb._protocol.roles import Role
from monarch_nb._widgets.top import follow
from monarch_nb._wire.invitation import is_far, is_invitation
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.status import MeshStatus


def start(state: State, arguments: Namespace) -> None:
    """Start a mesh, or attach to the running one of that name."""
    from monarch_nb.mesh.running import refuse_other, take_on

    if arguments.dry_run and arguments.on:
        print(script_text(arguments, plan_of(arguments)))
        return
    before = state.current
    mesh, is_new = start_or_attach(arguments, state.attach)
    if not is_new:
        try:
            asked = asked_on_engine(mesh, arguments) if arguments.on else asked_for(arguments)
            refuse_other(mesh, asked)
            refuse_other_job(mesh, arguments.job)
        except MeshUsageError:
            state.go_back(before)
            raise
        messages = take_on(mesh, asked)
        if arguments.init_process_group is not None:
            messages.append(take_on_group(mesh, arguments.init_process_group, arguments.group_timeout))
        if arguments.force:
            messages.append("--force had nothing to do: no rank was started")
        print("; ".join([f"attached to {describe(mesh)}, which was running", *messages]))
        show_missed(mesh)
        return
    state.adopt(mesh)
    print(set_up(mesh, arguments))


def list_(state: State, arguments: Namespace) -> None:
    """List the meshes of this user: size, state, age, creator."""
    from monarch_nb.mesh.listing import list_rows, table_text

    rows = list_rows()
    print(table_text(rows, state.current) if rows else "no mesh runs. Start one: %mesh start")


def attach(state: State, arguments: Namespace) -> None:
    """Connect to a running mesh; show what was missed. A cell that still runs continues streaming here."""
    mesh = state.attach(_joined(arguments))
    role = session_of(mesh).role
    print(f"attached to {describe(mesh)}{'' if role is Role.OWNER else ' as ' + role.and_article}")
    if role is not Role.OBSERVER:  # an observer has missed nothing, and must not mark others' output as seen
        show_missed(mesh)


def _joined(arguments: Namespace) -> str | None:
    """Return the name of the intended mesh, after joining it if an invitation was given."""
    name: str | None = arguments.name
    if name is not None and (is_far(name) or is_invitation(name)):
        from monarch_nb._commands.sharing import joined

        return joined(arguments).name
    if arguments.as_name is not None:
        raise MeshUsageError("attach: --as goes with an invitation: %mesh attach FILE --as NAME")
    if arguments.python is not None:
        raise MeshUsageError("attach: --python goes with a machine: %mesh attach MACHINE:NAME --python PATH")
    return name


def detach(state: State, arguments: Namespace) -> None:
    """Disconnect from a mesh, which continues."""
    mesh = state.mesh(arguments.name)
    state.drop(mesh.name)
    session_of(mesh).close()
    print(f"detached from mesh {mesh.name!r}; it goes on. Come back: %mesh attach {mesh.name}")


def use(state: State, arguments: Namespace) -> None:
    """Set the mesh that %%mesh runs on; without a name, print it."""
    if arguments.name is None:
        print(f"using {describe(state.mesh())}; another one: %mesh use NAME, of those in %mesh list")
        return
    state.adopt(state.mesh(arguments.name))
    print(f"using {describe(state.mesh())}")


def status(state: State, arguments: Namespace) -> None:
    """Show the state of a mesh, or that there's none."""
    if arguments.name is None and state.current is None:
        list_(state, arguments)
        return
    print(state.mesh(arguments.name).status().text())


def top(state: State, arguments: Namespace) -> None:
    """Show the activity and the resources of each rank, live."""
    from IPython.display import display

    handle: Any = None

    def show(status: MeshStatus) -> None:
        nonlocal handle
        text = tables.text(status)
        bundle = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if handle is None:
            handle = display(bundle, raw=True, display_id=True)
        else:
            handle.update(bundle, raw=True)

    with suppress(KeyboardInterrupt):
        follow(state.mesh(arguments.name), show, every_s=arguments.every, count=arguments.count)


def stop(state: State, arguments: Namespace) -> None:
    """End a mesh, and forget it."""
    mesh = state.mesh(arguments.name)
    print(actions.stop(mesh, arguments))
    state.drop(mesh.name)


def say_what_runs(shell: Any) -> bool:
    """List running meshes, with cells that have ended on them unseen; return whether there are any. For
    `%load_ext`.
    """
    from monarch_nb._client.launch import list_connections
    from monarch_nb.mesh import attach as attach_mesh

    running = list_connections()
    for connection in running:
        note = ""
        try:
            mesh = attach_mesh(connection.name, listens=False)
            note = mesh.journal.missed().summary()
            session_of(mesh).close()
        except Exception as error:  # whatever is wrong with one mesh, the extension loads
            note = str(error)
        print(
            f"mesh {connection.name!r} runs{': ' + note if note else ''}. Attach: %mesh attach "
            f"{connection.name}"
        )
    return bool(running)
