"""Who answers what is asked of a host process."""

from __future__ import annotations

import pytest

from monarch_nb._host.request import Reception, RequestError


class Door:
    def do_open(self, message: object, fields: dict[str, object]) -> object:
        return fields["wide"]

    def on_knock(self, src: int, fields: dict[str, object]) -> None:
        self.heard = src


class Window:
    def do_open(self, message: object, fields: dict[str, object]) -> object:
        return None


def test_a_desk_answers_what_its_methods_are_named_for() -> None:
    reception, door = Reception(), Door()
    reception.add(door)
    assert reception.request("open")(None, {"wide": 3}) == 3  # type: ignore[arg-type]
    news = reception.news("knock")
    assert news is not None
    news(7, {})
    assert door.heard == 7


def test_what_nobody_answers_is_refused_by_name_and_news_are_left() -> None:
    reception = Reception()
    with pytest.raises(RequestError, match="knows no request 'shut'; is it of another version"):
        reception.request("shut")
    assert reception.news("shut") is None


def test_two_desks_cant_answer_the_same() -> None:
    reception = Reception()
    reception.add(Door())
    with pytest.raises(ValueError, match=r"two desks answer 'open': .*Window.do_open"):
        reception.add(Window())
