"""Settings of this program's meshes, under Monarch's names: `configure(process_exit_timeout="10s")`.

Those that have something to set here are in `EFFECTIVE`. The others are accepted, so that a program runs as
it is, and say what there is instead.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from monarch_nb._client.preferences import preferences

__all__ = ["clear_runtime_config", "configure", "configured", "get_global_config", "get_runtime_config"]


class Effective(NamedTuple):
    """A setting that has an effect.

    Attributes:
        field: field of this program's preferences.
        default: its value if none was set.
    """

    field: str
    default: bool | str


EFFECTIVE = {
    "enable_log_forwarding": Effective("shows_output", True),
    "process_exit_timeout": Effective("stop_s", "3s"),
    "host_spawn_ready_timeout": Effective("attach_s", "20s"),
    "message_delivery_timeout": Effective("request_s", "30s"),
}

_INSTEAD = {
    "default_transport": (
        "messages take unix sockets on a machine and tcp with CURVE between machines, by themselves"
    ),
    "enable_file_capture force_file_log": (
        "a named mesh keeps all output in its journal: monarch-nb logs, mesh.journal"
    ),
    "tail_log_lines read_log_buffer": (
        "the last 20 lines of a rank that dies come with its failure; a named mesh's journal has all"
    ),
    "prefix_with_rank": "procs.logging_option(aggregate_window_sec=None) shows output without ranks",
    (
        "codec_max_frame_length split_max_buffer_size split_max_buffer_age small_write_threshold "
        "max_cast_dimension_size default_encoding"
    ): "messages have no limit, and large values go through shared memory or the data plane by themselves",
    "message_ack_time_interval message_ack_every_n_messages message_ttl_default "
    "enable_dest_actor_reordering_buffer channel_net_rx_buffer_full_check_interval "
    "message_latency_sampling_rate": "sockets acknowledge and keep each sender's order by themselves",
    "mesh_proc_spawn_max_idle actor_spawn_max_idle get_actor_state_max_idle proc_stop_max_idle "
    "get_proc_state_max_idle supervision_watchdog_timeout stop_actor_timeout cleanup_timeout "
    "mesh_attach_config_timeout remote_allocator_heartbeat_interval": (
        "the kernel tells of ends, no time-out does; bound a wait by .get(timeout=)"
    ),
    "mesh_terminate_concurrency mesh_terminate_timeout": (
        "all ranks are ended at once; process_exit_timeout says how long they have"
    ),
    "mesh_bootstrap_enable_pdeathsig": "ranks always end with their host process",
    "shared_asyncio_runtime actor_queue_dispatch": "each actor has a thread and a loop of its own",
    "remote_alloc_bind_to_inaddr_any remote_alloc_bootstrap_addr remote_alloc_allowed_port_range": (
        "a worker says where it listens: "
        'run_worker_loop_forever(address="tcp://host:7000@tcp://0.0.0.0:7000")'
    ),
    "mesh_orphan_timeout": (
        "a script's ranks end with it; a named mesh has a lease: monarch-nb lease --set 24h"
    ),
    "mesh_admin_addr": "monarch-nb dashboard, and /metrics of the Jupyter server",
}
NOT_HERE = {name: instead for names, instead in _INSTEAD.items() for name in names.split()}

_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")

_given: dict[str, Any] = {}


def configure(**settings: Any) -> None:
    """Change settings of this program, for its present and future meshes. None leaves a setting unchanged.

    Args:
        settings: `enable_log_forwarding` (bool); `process_exit_timeout`, `host_spawn_ready_timeout`,
            `message_delivery_timeout` (as in "30s" or "1h 30m"). Monarch's others have no effect, and warn.

    Raises:
        ValueError: for a name that Monarch doesn't have either, or a value that can't be.

    Example:
        >>> configure(process_exit_timeout="10s")
        >>> get_global_config()["process_exit_timeout"]
        '10s'
        >>> clear_runtime_config()
    """
    wanted = {name: value for name, value in settings.items() if value is not None}
    read = {name: _read(name, value) for name, value in wanted.items()}  # all or nothing
    for name, value in wanted.items():
        if name in EFFECTIVE:
            setattr(preferences, EFFECTIVE[name].field, read[name])
        elif _given.get(name) != value:
            warnings.warn(
                f"configure({name}={value!r}) has no effect in monarch_nb: {NOT_HERE[name]}", stacklevel=2
            )
    _given.update(wanted)


def _read(name: str, value: Any) -> Any:
    if name in NOT_HERE:
        return value
    if name not in EFFECTIVE:
        near = difflib.get_close_matches(name, [*EFFECTIVE, *NOT_HERE], 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EFFECTIVE)}"
        raise ValueError(f"there is no setting {name!r}; {hint}")
    if isinstance(EFFECTIVE[name].default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is True or False, not {value!r}")
        return value
    return _seconds(name, value)


def _seconds(name: str, value: Any) -> float:
    text = value.strip() if isinstance(value, str) else ""
    pieces = _DURATION.findall(text)
    if not pieces or _DURATION.sub("", text) or any(unit not in _UNITS for _, unit in pieces):
        raise ValueError(f'{name} is a time such as "30s", "500ms" or "1h 30m", not {value!r}')
    return sum(float(number) * _UNITS[unit] for number, unit in pieces)


def get_global_config() -> dict[str, Any]:
    """Return the present settings: the defaults, with this program's changes."""
    return {name: each.default for name, each in EFFECTIVE.items()} | _given


def get_runtime_config() -> dict[str, Any]:
    """Return the settings that this program has changed."""
    return dict(_given)


def clear_runtime_config() -> None:
    """Undo all changes of this program."""
    _given.clear()
    vars(preferences).update(vars(type(preferences)()))


@contextmanager
def configured(**settings: Any) -> Iterator[Mapping[str, Any]]:
    """Change settings within a block, for all threads of the program.

    Example:
        >>> with configured(enable_log_forwarding=False) as settings:
        ...     settings["enable_log_forwarding"]
        False
    """
    before, preferred = get_runtime_config(), dict(vars(preferences))
    try:
        configure(**settings)
        yield get_global_config()
    finally:
        _given.clear()
        _given.update(before)
        vars(preferences).update(preferred)
