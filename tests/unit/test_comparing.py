"""Digests of variables, differences in words, names that Tab offers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from monarch_nb._rank import variables
from monarch_nb._stacks import WAITING, innermost, stacks_text
from monarch_nb.mesh.variables import Variables, describe_difference


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(3), torch.zeros(3)),
        (torch.arange(6).reshape(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]])),
        (np.ones((2, 2)), np.ones((2, 2))),
        ({"a": [1, torch.ones(1)]}, {"a": [1, torch.ones(1)]}),
        (torch.tensor(float("nan")), torch.tensor(float("nan"))),
        (torch.zeros(0), torch.zeros(0)),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (torch.ones(2).to_sparse(), torch.ones(2).to_sparse()),
        (len, len),
    ],
)
def test_equal_content_has_equal_digests(one: Any, other: Any) -> None:
    assert variables.digest(one) == variables.digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        ({"a": 1}, {"b": 1}),
        (1, 2),
        ("a", "b"),
    ],
)
def test_other_content_has_another_digest(one: Any, other: Any) -> None:
    assert variables.digest(one) != variables.digest(other)


def test_modules_are_compared_part_by_part() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    assert "['0.weight']" in variables.leaf_digests(model)
    assert torch.equal(variables.leaf_at(model, "['0.bias']"), model[0].bias.detach())
    with pytest.raises(KeyError):
        variables.leaf_at(model, "['5.bias']")


@pytest.mark.parametrize(
    ("value", "reference", "text"),
    [
        (
            torch.tensor([1.0, 2.5]),
            torch.tensor([1.0, 2.0]),
            "first differs at 1: 2.5 instead of 2; largest difference 0.5, in 1 of 2 elements",
        ),
        (
            torch.tensor(1.0),
            torch.tensor(2.0),
            "first differs: 1 instead of 2; largest difference 1, in 1 of 1 elements",
        ),
        (
            torch.tensor([float("inf")]),
            torch.tensor([0.0]),
            "first differs at 0: inf instead of 0, in 1 of 1 elements, 1 not finite",
        ),
        (
            torch.tensor([float("nan"), 1.0]),
            torch.tensor([float("nan"), 2.0]),
            "first differs at 1: 1 instead of 2; largest difference 1, in 1 of 2 elements",
        ),
        (torch.tensor([-0.0]), torch.tensor([0.0]), "differs in its bits only (such as the sign of zero)"),
        (torch.ones(2), torch.ones(2, dtype=torch.int64), "has dtype torch.float32 instead of torch.int64"),
        (
            np.array([1, 5]),
            np.array([1, 2]),
            "first differs at 1: 5 instead of 2; largest difference 3, in 1 of 2 elements",
        ),
        ("<missing>", 1, "does not have it"),
        (1, "<missing>", "has it, the others do not"),
    ],
)
def test_differences_in_words(value: Any, reference: Any, text: str) -> None:
    assert describe_difference(value, reference) == text


def test_variables_that_some_ranks_lack_are_marked() -> None:
    row = {"name": "x", "type": "int", "text": "1", "digest": "d"}
    found = Variables({0: [row], 1: [row], 2: []})
    assert found.differing() == ["x"]
    assert "not defined" in found.text()
    assert "[0-1]" in found.text()
    assert Variables({0: []}).text() == "no variables"
    assert "<table>" in found._repr_html_()


def test_a_repr_that_raises_does_no_harm() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert variables.describe("b", Bad())["text"] == "<repr raised RuntimeError: no>"


def test_properties_are_not_run_for_completion() -> None:
    class Trap:
        @property
        def sprung(self) -> None:
            raise SystemError

    assert variables.complete({"trap": Trap()}, "trap.spr") == ["trap.sprung"]
    assert variables.complete({"trap": Trap()}, "trap.sprung.x") == []
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    assert "model.state_dict" in variables.complete({"model": model}, "model.state")


STACK = """  File "/x/monarch_nb/_rank/main.py", line 1, in run_rank
    rank.worker.serve()
  File "<ipython-input-5-abc>", line 7, in train
    step()
  File "/home/me/lib.py", line 3, in step
    wait()
"""


IDLE = f"""  File "<string>", line 1, in <module>
  File "/x/monarch_nb/_rank/zygote.py", line 62, in main
    _Zygote(link).serve()
  File "/x/monarch_nb/_runtime/inbox.py", line 3, in {WAITING}
    wait()
"""


def test_an_idle_rank_is_idle() -> None:
    assert innermost({"stacks": {"MainThread": IDLE}}) == "is idle"
    assert stacks_text({0: {"stacks": {"MainThread": IDLE}}}) == "rank 0: idle"


def test_stacks_say_where_the_user_stands() -> None:
    assert innermost({"stacks": {"MainThread": STACK}}) == "is at /home/me/lib.py, line 3, in step: wait()"
    assert innermost({"stacks": None}) == "does not answer: its threads can't run Python just now"
    assert innermost({"process": "is stopped", "stacks": None}) == "is stopped"
    found = {r: {"stacks": {"MainThread": STACK}} for r in range(3)} | {3: {"stacks": {"MainThread": ""}}}
    text = stacks_text(found)
    assert text.startswith("ranks 0-2: cell or function\n  In[5], line 7, in train")
    assert "run_rank" not in text
    assert "rank 3: idle" in text
