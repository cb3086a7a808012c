"""The magics `%mesh VERB` and `%%mesh`: they parse, call one function, and display one result.

mesh_magic  the magics class
verbs       which function each verb of the table (`_commands`) calls
state       which meshes this kernel uses
verb_help   parsers, and what help says
lifecycle, clusters, data, debug, journal, script, auto, reload, sync, settings   what verbs do in a notebook
cell        a cell on its way: live view while it runs, red when it fails
missed      what nobody has seen, in one display
completion, values   what Tab offers
remote_help what Shift+Tab and `?` say of a name that the ranks know
"""

from __future__ import annotations

import sys
from typing import Any


def load(shell: Any) -> None:
    """Register the magics, list running meshes, and warm up."""
    from monarch_nb import _reload
    from monarch_nb._client import kernel, spare, waiting
    from monarch_nb._commands.refusal import explanation
    from monarch_nb._display.live import leave_displays
    from monarch_nb._display.transfer_bar import show_long
    from monarch_nb._magics.completion import Completion, explain_verbs
    from monarch_nb._magics.debug import CellPrompt
    from monarch_nb._magics.lifecycle import say_what_runs
    from monarch_nb._magics.mesh_magic import MeshMagics
    from monarch_nb._magics.reload import StaleClasses
    from monarch_nb._magics.remote_help import RemoteHelp
    from monarch_nb._magics.sync import CodeWatch

    unload(shell)
    _reload.install()
    magics = MeshMagics(shell)
    shell.register_magics(magics)
    waiting.on_stop = CellPrompt(magics.state)
    waiting.on_long = show_long
    kernel.leave_first(leave_displays)
    completion = Completion(magics)
    shell.Completer.custom_matchers.append(completion.matcher)
    RemoteHelp(magics.state, shell).install()
    shell.input_transformers_cleanup.append(explain_verbs)
    shell.events.register("post_run_cell", StaleClasses(magics.state).__call__)
    shell.events.register("pre_run_cell", CodeWatch(magics.state).__call__)
    runs = False
    try:
        runs = say_what_runs(shell)
    except OSError as error:
        # For example a home that isn't writable: the extension is loaded, and features that need it report
        # the error again.
        print(explanation(error, "%load_ext monarch_nb"), file=sys.stderr)
    if not runs:  # else that one is attached to, mostly
        spare.prepare()


def unload(shell: Any) -> None:
    """Remove the magics; meshes continue."""
    from monarch_nb._client import waiting
    from monarch_nb._magics import auto
    from monarch_nb._magics.completion import Completion, explain_verbs
    from monarch_nb._magics.reload import StaleClasses
    from monarch_nb._magics.remote_help import RemoteHelp
    from monarch_nb._magics.sync import CodeWatch

    if explain_verbs in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(explain_verbs)
    for kind, names in (("line", ["mesh"]), ("cell", ["mesh", "local"])):
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    auto.remove(shell)
    waiting.on_stop = waiting.on_long = None
    RemoteHelp.remove(shell)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if not isinstance(getattr(m, "__self__", None), Completion)]
    for event in ("post_run_cell", "pre_run_cell"):
        for callback in list(shell.events.callbacks[event]):
            if isinstance(getattr(callback, "__self__", None), StaleClasses | CodeWatch):
                shell.events.unregister(event, callback)
