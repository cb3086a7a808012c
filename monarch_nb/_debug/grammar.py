"""The grammar of the debugger's prompt: Monarch's commands, and lines for pdb.

list                          who stands where (pdb's own `list` is `l`)
focus RANKS | all             whom lines go to: 0-3,7; ranks(1,4); hosts=0,gpus=2:8
attach ACTOR RANK             only one
cast ACTOR RANKS LINE         one line for others than the focus
continue, c                   let the focus run on
detach                        leave the prompt; ranks stay where they are
quit, q                       let all run on, without breakpoints
anything else                 a line for pdb: p x, n, s, w, u, d, l, display x, interact ...
"""

from __future__ import annotations

from dataclasses import dataclass


class PromptError(ValueError):
    """The error of a line that can't be parsed; its text says what was expected."""


@dataclass(frozen=True)
class ListStops:
    """The command that lists the stops."""


@dataclass(frozen=True)
class Focus:
    """The command that sets the focus: later lines go to these stops."""

    ranks: str
    thread: str = ""


@dataclass(frozen=True)
class Cast:
    """The command that sends one line to these stops."""

    thread: str
    ranks: str
    line: str


@dataclass(frozen=True)
class Detach:
    """The command that leaves the prompt; stopped ranks stay stopped."""


@dataclass(frozen=True)
class Quit:
    """The command that lets all ranks continue."""


@dataclass(frozen=True)
class Help:
    """The command that lists the prompt's commands; `about`: a pdb command whose help is wanted."""

    about: str = ""


@dataclass(frozen=True)
class Line:
    """A line for pdb of the stops in focus."""

    text: str


Command = ListStops | Focus | Cast | Detach | Quit | Help | Line


def parse(text: str) -> Command:
    """Parse a line.

    Raises:
        PromptError: saying what was expected.

    >>> parse("cast trainer ranks(1,4) p x")
    Cast(thread='trainer', ranks='ranks(1,4)', line='p x')
    >>> parse("attach trainer 3")
    Focus(ranks='3', thread='trainer')
    """
    words = text.split()
    verb = words[0] if words else ""
    if verb == "list" and len(words) == 1:
        return ListStops()
    if verb == "focus":
        return Focus(_rest(text, 1, "focus RANKS, as in focus 0-3 or focus ranks(1,4) or focus all"))
    if verb == "attach":
        if len(words) != 3:
            raise PromptError(
                "expected: attach ACTOR RANK, as in attach trainer 3 (main: the rank's main thread)"
            )
        return Focus(words[2], words[1])
    if verb == "cast":
        return _cast(text)
    if verb == "detach" and len(words) == 1:
        return Detach()
    if verb in ("quit", "q", "exit") and len(words) == 1:
        return Quit()
    if verb in ("help", "h", "?"):
        return Help(" ".join(words[1:]))
    return Line("continue" if verb == "cont" else text)


def _cast(text: str) -> Cast:
    usage = "expected: cast ACTOR RANKS COMMAND, as in cast trainer ranks(1,4) p loss"
    words = text.split(None, 2)
    if len(words) < 3:
        raise PromptError(usage)
    ranks, line = _split_ranks(words[2])
    if not line:
        raise PromptError(usage)
    return Cast(words[1], ranks, line)


def _split_ranks(text: str) -> tuple[str, str]:
    """Return the rank set at the beginning, which may have blanks within parentheses, and what follows."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter.isspace() and depth <= 0:
            return text[:i], text[i:].strip()
    return text, ""


def _rest(text: str, num_words: int, usage: str) -> str:
    parts = text.split(None, num_words)
    if len(parts) <= num_words:
        raise PromptError(f"expected: {usage}")
    return parts[num_words].strip()
