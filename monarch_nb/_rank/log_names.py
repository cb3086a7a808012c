"""What an actor logs says which actor it is: `[actor=<root>.<module.Trainer trainer{'gpus': 3/8}>] loss is nan`.

By the record factory, so that a record has the name once, whichever handlers and formatters there are.
"""

from __future__ import annotations

import logging
from typing import Any

from monarch_nb._post.context import call_context

_installed = False


def install() -> None:
    """Let records that are made in an actor's messages have its name. Does nothing the second time."""
    global _installed
    if _installed:
        return
    _installed = True
    make = logging.getLogRecordFactory()

    def make_named(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        actor = call_context.get().actor
        if actor is not None and record.msg:  # torch.compile logs empty messages, and relies on it
            _name(record, actor)
        return record

    logging.setLogRecordFactory(make_named)


def _name(record: logging.LogRecord, actor: Any) -> None:
    from monarch_nb.actor import config
    from monarch_nb.actor.context import Instance

    if not config.prefix_python_logs_with_actor:
        return
    prefix = f"[actor={Instance(actor)}] "
    record.actor_prefix = prefix
    record.msg = (prefix.replace("%", "%%") if record.args else prefix) + str(record.msg)
