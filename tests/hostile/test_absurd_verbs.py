"""Verbs with absurd arguments: each is answered in words, and the mesh is none the worse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from absurd_words import absurd_line, absurd_ranks
from hostile import Kernel, generator, insides_in, nothing_left, num_tries, tried

from monarch_nb._magics.verb_help import verb_parsers
from monarch_nb._magics.verbs import VERBS
from monarch_nb._shape import Extent
from monarch_nb._shape.rank_set import RankSetError, parse_ranks

MAX_ANSWER_BYTES = 40_000
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with nothing_left():
        started = Kernel(tmp_path_factory.mktemp("absurd"))
        try:
            ready = started.run("%mesh start absurd --procs 2").text
            assert "is ready" in ready, ready
            yield started
            stopped = started.run("%mesh stop absurd").text
            assert "has ended" in stopped, stopped
            started.close()
        except BaseException:
            started.kill()
            raise


@pytest.mark.parametrize("verb", list(VERBS))
def test_a_verb_with_absurd_arguments(verb: str, kernel: Kernel) -> None:
    rng, parsers = generator(verb), verb_parsers()
    for _ in range(num_tries(6, 70)):
        _answered(kernel, f"%mesh {absurd_line(verb, parsers, rng)}")
    _answers(kernel)


def test_cells_on_absurd_ranks(kernel: Kernel) -> None:
    rng = generator("cells")
    for _ in range(num_tries(30, 300)):
        _answered(kernel, f"%%mesh --ranks '{absurd_ranks(rng)}'\n1")
    _answers(kernel)


def _answered(kernel: Kernel, source: str) -> None:
    shown = kernel.run(source)
    assert not insides_in(shown.text), f"{source!r}: {shown.text[:3000]}"
    assert shown.num_bytes < MAX_ANSWER_BYTES, f"{source!r}: {shown.num_bytes:,} bytes of answer"
    assert not shown.is_error or shown.text.strip(), f"{source!r}: an error without a word"
    tried("cells on absurd ranks" if source.startswith("%%") else "absurd verbs")


def _answers(kernel: Kernel) -> None:
    """See that all ranks still answer; shrinking and resizing are not absurd, so however many there are."""
    text = kernel.run("%%mesh --output answers\n6 * 7").text + kernel.run("print(set(answers.values()))").text
    assert text.strip().endswith("{42}"), text


def test_sets_of_ranks() -> None:
    rng, grid = generator("ranks"), Extent(["hosts", "gpus"], [2, 4])
    for _ in range(num_tries(2_000, 20_000)):
        text = absurd_ranks(rng)
        found, why = _parsed(text, grid)
        assert (found is None) == ("ranks 0-7" in why), (text, why)
        if found is not None:
            assert list(found) == sorted(set(found)), text
            assert set(found) <= set(range(8)), text


def _parsed(text: str, grid: Extent) -> tuple[tuple[int, ...] | None, str]:
    try:
        return parse_ranks(text, grid), ""
    except RankSetError as error:
        return None, str(error)
