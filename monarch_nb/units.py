"""Sizes and times as people read them."""

from __future__ import annotations


def size_text(num_bytes: int) -> str:
    """Return bytes for people.

    >>> [size_text(n) for n in (17, 4096, 3 << 20, 5 << 30)]
    ['17 bytes', '4 KiB', '3 MiB', '5 GiB']
    """
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.4g} {unit}"
        size /= 1024
    raise AssertionError


def time_text(seconds: float) -> str:
    """Return a time for people.

    >>> [time_text(s) for s in (0.0000123, 0.0456, 7.891)]
    ['12.3 us', '45.6 ms', '7.89 s']
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
