"""Adds an actor's name to its log messages: `[actor=<root>.<module.Trainer trainer{'gpus': 3/8}>] loss is
nan`.

By the record factory, so that a record has the name once, whichever handlers and formatters there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from monarch_nb._transport.context import call_context

_installed = False
_name_of: Callable[[Any], str] = str
_is_wanted: Callable[[], bool] = bool


def name_actors_by(name_of: Callable[[Any], str], is_wanted: Callable[[], bool]) -> None:
    """Set the functions that return an actor's name in log records, and whether to add it: the programming
    model provides them.
    """
    global _name_of, _is_wanted
    _name_of, _is_wanted = name_of, is_wanted


def install() -> None:
    """Add actors' names to log records from now on. Does nothing the second time."""
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
    if not _is_wanted():
        return
    prefix = f"[actor={_name_of(actor)}] "
    record.actor_prefix = prefix
    record.msg = (prefix.replace("%", "%%") if record.args else prefix) + str(record.msg)
