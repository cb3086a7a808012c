"""Shortens long chains of errors: IPython takes 40 ms for each cause, and nobody reads the hundredth."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from monarch_nb._tracebacks import MAX_LINKS, links_left_out

Parts = tuple[type[BaseException], BaseException, TracebackType | None]


def bound_chain(formatter: Any) -> None:
    """Have IPython's formatter of tracebacks leave out the middle of a long chain of errors."""
    base: Any = type(formatter)

    class Bounded(base):  # type: ignore[misc]  # IPython's class is untyped
        """IPython's traceback formatter, restricted to the ends of a long chain of errors. It counts the
        links that it is asked for, from the error that was raised on.
        """

        _num_asked = 0
        _num_left_out = 0

        def structured_traceback(self, *args: Any, **kwargs: Any) -> Any:
            self._num_asked = 0
            return super().structured_traceback(*args, **kwargs)

        def get_parts_of_chained_exception(self, evalue: BaseException | None) -> Parts | None:
            self._num_asked += 1
            parts: Parts | None = super().get_parts_of_chained_exception(evalue)
            self._num_left_out = 0
            if parts is None or self._num_asked != MAX_LINKS // 2:
                return parts
            return self._beyond_the_middle(parts)

        def _beyond_the_middle(self, parts: Parts) -> Parts:
            rest, seen = [parts], {id(parts[1])}
            while (more := super().get_parts_of_chained_exception(rest[-1][1])) is not None and id(
                more[1]
            ) not in seen:
                seen.add(id(more[1]))
                rest.append(more)
            self._num_left_out = max(0, len(rest) - MAX_LINKS // 2)
            return rest[self._num_left_out]

        def prepare_chained_exception_message(self, cause: BaseException | None) -> Any:
            if self._num_left_out:
                return [[f"\n{links_left_out(self._num_left_out)}\n"]]
            return super().prepare_chained_exception_message(cause)

    formatter.__class__ = Bounded
