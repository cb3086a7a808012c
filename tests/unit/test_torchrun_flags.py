"""Each flag of the installed torchrun means something to a run, or is refused with a sentence that names it,
says why and what to do instead. A flag that a new torchrun brings fails here until it has its entry.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from monarch_nb import _cli
from monarch_nb._commands.torchrun import ELSEWHERE
from monarch_nb._magics.verb_help import verb_parsers
from monarch_nb._torchrun import REFUSED
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.spmd import Command, serve

HONOURED: dict[str, tuple[list[str], str, Any]] = {
    "--help": ([], "", None),  # argparse's own
    "--nnodes": (["1:1"], "nnodes", 1),
    "--nproc-per-node": (["4"], "nproc_per_node", "4"),
    "--standalone": ([], "standalone", True),
    "--run-path": ([], "run_path", True),
    "--max-restarts": (["3"], "max_restarts", 3),
    "--module": ([], "is_module", True),
}
"""What is typed behind each flag that a terminal's run takes, and what it's read as."""
ACTIONS = [action for action in get_args_parser()._actions if action.option_strings]
SPELLINGS = [(action, flag) for action in ACTIONS for flag in action.option_strings]
IDS = [flag for _, flag in SPELLINGS]


def long_name(action: argparse.Action) -> str:
    return next(flag for flag in action.option_strings if flag.startswith("--"))


def typed(action: argparse.Action, flag: str) -> list[str]:
    return [flag, *([] if action.nargs == 0 else list(action.choices or ["1"])[:1]), "train.py"]


def test_each_flag_of_torchrun_has_its_entry_and_no_other_has() -> None:
    theirs = {long_name(action) for action in ACTIONS}
    assert {f"--{name}" for name in REFUSED} | set(HONOURED) == theirs
    assert not {f"--{name}" for name in REFUSED} & set(HONOURED)
    assert {f"--{name}" for name in ELSEWHERE} == set(HONOURED) - {"--help", "--module"}


@pytest.mark.parametrize(("action", "flag"), SPELLINGS, ids=IDS)
def test_a_terminal_takes_it_or_says_why_not(
    action: argparse.Action, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = long_name(action)
    if name in HONOURED:
        words, dest, expected = HONOURED[name]
        if dest:
            found = _cli._parser().parse_args(["run", flag, *words, "train.py"])
            assert (getattr(found, dest), found.script, found.args) == (expected, "train.py", [])
        return
    for words in (typed(action, flag), ["--standalone", *typed(action, flag), "--lr", "0.1"]):
        with pytest.raises(SystemExit) as raised:
            _cli._parser().parse_args(["run", *words])
        output = capsys.readouterr().err
        assert raised.value.code == _cli.USAGE_ERROR
        assert output.startswith(f"monarch-nb run: {name} means nothing here: ") and "%mesh" not in output
        assert "Leave it out" in output or "Run a script" in output


@pytest.mark.parametrize(("action", "flag"), SPELLINGS, ids=IDS)
def test_a_notebook_takes_it_or_says_what_to_type(action: argparse.Action, flag: str) -> None:
    name, parser = long_name(action), verb_parsers()["run"]
    if name in ("--help", "--module") or not flag.startswith("--"):  # %mesh run has -r and -t of its own
        return
    with pytest.raises(MeshUsageError) as raised:
        parser.parse_args(typed(action, flag))
    output = str(raised.value)
    assert output.startswith(f"%mesh run: unrecognized arguments: {flag}")
    instead = parser.instead[name]  # type: ignore[attr-defined]
    assert f". {instead}. Usage: " in output and "Did you mean" not in output


@pytest.mark.parametrize(("action", "flag"), SPELLINGS, ids=IDS)
def test_serve_takes_it_or_says_what_to_do(action: argparse.Action, flag: str) -> None:
    name = long_name(action)
    if name in HONOURED:
        words, dest, _ = HONOURED[name]
        if dest:
            assert Command.parse(["torchrun", flag, *words, "train.py"]).script_args[-1] == "train.py"
        return
    for words in (typed(action, flag), ["--standalone", *typed(action, flag), "--lr", "0.1"]):
        with pytest.raises(MeshUsageError, match=f"^serve: {name} means nothing here: ") as raised:
            serve(["torchrun", *words])
        said = str(raised.value)
        assert ("Leave it out" in said or "Name a script" in said) and "%mesh" not in said


def test_serve_says_all_that_mean_nothing_and_leaves_the_scripts_own() -> None:
    with pytest.raises(MeshUsageError) as raised:
        serve(["torchrun", "--tee", "3", "--log-dir=logs", "train.py", "--role", "own"])
    assert [line.split(" means ")[0] for line in str(raised.value).splitlines()] == [
        "serve: --log-dir",
        "serve: --tee",
    ]


def test_flags_behind_the_script_are_its_own() -> None:
    found = _cli._parser().parse_args(["run", "train.py", "--log-dir", "x", "-t", "3"])
    assert found.args == ["--log-dir", "x", "-t", "3"]


@pytest.mark.parametrize("word", ["2:4", "0", "few"])
def test_a_number_of_hosts_that_cant_be_is_said(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _cli._parser().parse_args(["run", "--nnodes", word, "train.py"])
    assert f"argument --nnodes: expected a number of at least 1, not {word!r}" in capsys.readouterr().err
