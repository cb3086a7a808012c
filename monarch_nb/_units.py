"""Parses and formats sizes, rates, times and shares. Units of size are powers of 1024: KiB, MiB, GiB."""

from __future__ import annotations

MAX_DURATION_S = 3650 * 86400
"""Longest duration that users may request; clocks and locks have limits."""


def size_text(num_bytes: float | None) -> str:
    """Return bytes for people; "n/a" if nobody knows.

    >>> [size_text(n) for n in (17, 4096, 3 << 20, 1_310_000_000, None)]
    ['17 bytes', '4 KiB', '3 MiB', '1.22 GiB', 'n/a']
    """
    if num_bytes is None:
        return "n/a"
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.4g} {unit}"
        size /= 1024
    raise AssertionError


def rate_text(num_bytes: float, seconds: float) -> str:
    """Return how fast bytes went, in 1e9 bytes per second as makers of networks and memory count.

    >>> [rate_text(n, 2.0) for n in (17_000_000_000, 820_000_000, 1_000)]
    ['8.5 GB/s', '0.41 GB/s', '0.00 GB/s']
    """
    rate = num_bytes / seconds / 1e9
    return f"{rate:.3g} GB/s" if rate >= 0.01 else f"{rate:.2f} GB/s"


def time_text(seconds: float) -> str:
    """Return a measured duration for people: three digits.

    >>> [time_text(s) for s in (0, 0.0000123, 0.0456, 7.891)]
    ['0', '12.3 us', '45.6 ms', '7.89 s']
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us" if seconds else "0"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def elapsed_text(seconds: float) -> str:
    """Return how long something takes that people wait for: to the second, in two units at most.

    >>> [elapsed_text(seconds) for seconds in (0.138, 3.44, 25.2, 125, 11520)]
    ['0.14 s', '3.4 s', '25 s', '2 min 5 s', '3 h 12 min']
    """
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )


def duration(seconds: float) -> str:
    """Return a limit or an age in one unit, as `parse_duration` reads it.

    >>> [duration(seconds) for seconds in (90, 300, 28800, 172800)]
    ['90 s', '5 min', '8 h', '2 d']
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def parse_duration(text: str) -> float:
    """Return the seconds in `90`, `90s`, `5m`, `8h` or `2d`.

    Raises:
        ValueError: saying what was expected.

    >>> parse_duration("8h")
    28800.0
    """
    units = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        seconds = float(number) * units[unit]
    except (ValueError, KeyError):
        raise ValueError(f"a duration is a number with s, m, h or d, as in 90s or 8h; not {text!r}") from None
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"a duration is more than 0 and at most {MAX_DURATION_S // 86400} d, not {text!r}")
    return seconds


def counted(num: int, noun: str) -> str:
    """Return how many there are.

    >>> counted(1, "rank"), counted(4, "rank")
    ('1 rank', '4 ranks')
    """
    return f"{num} {noun}{'s' * (num != 1)}"


def percent_text(share: float | None, form: str = "{}") -> str:
    """Return a share as text; nothing if nobody knows it.

    >>> percent_text(62.7), percent_text(None)
    ('63%', '')
    """
    return "" if share is None else form.format(f"{share:.0f}%")
