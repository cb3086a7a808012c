"""Output and ends that leave a host together: nothing is lost or reordered, or waits without need."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._host.agent.outbox import MAX_BYTES, Outbox
from monarch_nb._protocol.base import Event
from monarch_nb._protocol.events import EndsHere, RanksPrinted
from monarch_nb._protocol.exits import RankExit
from monarch_nb._wire.marks import SETTLED, TEXT, Piece


class Host:
    """Stands for a host agent: its loop's rounds and timers run when they're told to."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.rounds: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.is_stopping = self.holds_answers = self.is_alone = False
        self.outbox = Outbox(
            self,  # type: ignore[arg-type]
            self.tell,
            lambda: self.is_stopping,
            lambda: self.holds_answers,
            lambda: self.is_alone,
        )

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.rounds.append(callback)

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def tell(self, event: Event) -> None:
        self.outbox.flush()  # as whatever is sent does
        self.told.append(event)

    def end_round(self) -> None:
        callbacks, self.rounds = self.rounds, []
        for callback in callbacks:
            callback()

    def run_timers(self) -> None:
        callbacks, self.timers = self.timers, []
        for callback in callbacks:
            callback()

    def prints(self, proc: int, data: bytes = b"line\n", kind: str = TEXT) -> None:
        self.outbox.add_printed(proc, proc, Piece(kind, 0, "stdout", data))

    def ends(self, proc: int, *, stopped: bool) -> None:
        self.outbox.add_end(RankExit(proc, "workers", proc, "gpu-1", 4711, stopped=stopped))

    def num_told(self) -> int:
        return len(self.told)


def test_a_line_of_all_ranks_leaves_in_one_message() -> None:
    host = Host()
    for proc in range(32):
        host.prints(proc)
        host.end_round()
    assert host.num_told() == 0, "they wait for each other"
    host.run_timers()
    (told,) = host.told
    assert isinstance(told, RanksPrinted) and [each.proc for each in told.printed] == list(range(32))
    host.run_timers()
    assert host.num_told() == 1 and not host.timers


def test_a_line_of_an_only_rank_leaves_in_its_round_and_what_follows_at_once_together() -> None:
    host = Host()
    host.is_alone = True
    host.prints(1)
    host.prints(2)
    host.end_round()
    assert host.num_told() == 1
    for proc in range(30):
        host.prints(proc)
        host.end_round()
    assert host.num_told() == 1, "they wait for each other"
    host.run_timers()
    assert host.num_told() == 2
    host.run_timers()
    host.prints(1)
    host.end_round()
    assert host.num_told() == 3, "after a quiet moment, nothing waits"


def test_a_mark_that_somebody_waits_for_takes_all_along_unless_answers_wait_too() -> None:
    host = Host()
    host.is_alone = True
    host.prints(1)
    host.end_round()
    host.prints(1)
    host.prints(1, b"7", SETTLED)
    host.end_round()
    assert host.num_told() == 2
    host.holds_answers = True
    host.prints(1, b"8", SETTLED)
    host.end_round()
    assert host.num_told() == 2
    host.tell(EndsHere(()))  # stands for the answers
    assert [type(event) for event in host.told[2:]] == [RanksPrinted, EndsHere]


def test_ends_wait_only_while_ranks_are_being_stopped() -> None:
    host = Host()
    host.ends(1, stopped=False)
    host.end_round()
    assert host.num_told() == 1, "a loss is told of at once"
    host.is_stopping = True
    for proc in range(2, 9):
        host.ends(proc, stopped=True)
        host.end_round()
    assert host.num_told() == 1
    host.is_stopping = False
    host.ends(9, stopped=True)
    host.end_round()
    (told,) = host.told[1:]
    assert isinstance(told, EndsHere) and [end.proc for end in told.ends] == list(range(2, 10))
    host.is_stopping = True
    host.ends(10, stopped=True)
    host.run_timers()
    assert host.num_told() == 3, "one that hangs keeps none of the others"


def test_much_output_leaves_in_messages_of_bounded_size() -> None:
    host = Host()
    for _ in range(3 * 16):
        host.prints(1, bytes(MAX_BYTES // 16))
    assert host.num_told() == 3 and not host.outbox._printed


steps = st.one_of(
    st.tuples(st.just("print"), st.integers(0, 3), st.sampled_from([TEXT, SETTLED])),
    st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
    st.sampled_from([("round",), ("timers",), ("other",), ("stopping",), ("answers",), ("alone",)]),
)


@given(st.lists(steps))
def test_nothing_is_lost_or_reordered_whatever_comes_in_which_order(taken: list[tuple[object, ...]]) -> None:
    host, done = Host(), []
    for number, (what, *rest) in enumerate(taken):
        match what, rest:
            case "print", (int(proc), str(kind)):
                host.prints(proc, str(number).encode(), kind)
                done.append((proc, str(number)))
            case "end", (int(proc), bool(stopped)):
                host.ends(proc, stopped=stopped)
                done.append((proc, "end"))
                host.outbox.flush() if number % 2 else None
            case "round", _:
                host.end_round()
            case "timers", _:
                host.run_timers()
            case "other", _:
                host.tell(RanksPrinted(()))
                assert not host.outbox._printed and not host.outbox._ends
            case "stopping", _:
                host.is_stopping = not host.is_stopping
            case "alone", _:
                host.is_alone = not host.is_alone
            case _:
                host.holds_answers = not host.holds_answers
    host.end_round()
    host.run_timers()
    found = [
        pair
        for event in host.told
        for pair in (
            [(each.proc, each.piece[3].decode()) for each in event.printed]
            if isinstance(event, RanksPrinted)
            else [(end.proc, "end") for end in getattr(event, "ends", ())]
        )
    ]
    assert sorted(found) == sorted(done)
    for proc, end in {pair for pair in done if pair[1] == "end"}:
        before = {pair for pair in done[: done.index((proc, end))] if pair[0] == proc}
        assert before <= set(found[: found.index((proc, end))]), "what a rank printed comes before its end"
    for kind in (lambda pair: pair[1] == "end", lambda pair: pair[1] != "end"):
        assert [pair for pair in found if kind(pair)] == [pair for pair in done if kind(pair)]
