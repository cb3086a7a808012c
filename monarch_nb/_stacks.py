"""Shows the Python stacks of ranks, equal ones once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from monarch_nb._frames.cells import cell_number, with_cell_names
from monarch_nb._frames.owner import HIDDEN, Owner, owner_elsewhere
from monarch_nb._protocol.hang import RankStacks
from monarch_nb._shape import format_ranks, name_ranks

MAIN = "MainThread"
_FRAME = re.compile(r'  File "([^"]+)", (?:line (\d+), )?in (.+)')
_START = re.compile(r'\A\s*File "<string>", line 1, in <module>\n')
"""The outermost frame of a program that became a rank; below it, `<string>` is code that the user has
executed.
"""
WAITING = "take_message"
"""The function of `Inbox` in which a main thread without work stands."""
_USERS = frozenset({Owner.USER, Owner.EXECUTED})


def innermost(found: RankStacks) -> str:
    """Return in one line where a rank stands: the user's innermost frame, or what the kernel says of the
    process.

    That's the main thread's; if that waits for mail, the first actor's that does something.
    """
    if found.get("process"):
        return str(found["process"])
    stacks = found.get("stacks")
    if not stacks:
        return _no_answer(found)
    main = _FRAME.findall(_START.sub("", stacks.get(MAIN, "")))
    if _own(main) or (main and not any(function == WAITING for _, _, function in main)):
        return _standing(stacks[MAIN], _own(main) or main[-1:])
    for thread in sorted(name for name in stacks if name.startswith("actor-")):
        frames = _own(_FRAME.findall(stacks[thread]))
        if frames:
            return _standing(stacks[thread], frames)
    return "is idle"  # the thread waits for messages


def _own(frames: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return the frames of the user's."""
    users = [frame for frame in frames if owner_elsewhere(frame[0]) is Owner.USER]
    return users or [frame for frame in frames if owner_elsewhere(frame[0]) is Owner.EXECUTED]


def _standing(stack: str, frames: Sequence[tuple[str, str, str]]) -> str:
    file, line, function = frames[-1]
    if not line:
        return f"is in {function} ({_place(file)})"  # C code
    text = _line_after(stack, file, line)
    return f"is at {_place(file)}, line {line}, in {function}{': ' + text if text else ''}"


def _no_answer(found: RankStacks) -> str:
    why = f" ({found['missing']})" if found.get("missing") else ""
    return f"does not answer: its threads can't run Python just now{why}"


def _line_after(stack: str, file: str, line: str) -> str:
    lines = stack.splitlines()
    for i, found in enumerate(lines[:-1]):
        if f'File "{file}", line {line},' in found and not lines[i + 1].startswith("  File"):
            return lines[i + 1].strip()
    return ""


def _place(file: str) -> str:
    cell = cell_number(file)
    return file if cell is None else f"In[{cell}]"


def user_part(stack: str) -> str:
    """Return a thread's stack from the user's first frame on; empty if no frame is the user's.

    Frames of this package are left out: how an answer is waited for tells nothing.
    """
    blocks = re.split(r"(?m)^(?=  File )", stack)
    blocks = [b for b in blocks if b.strip()]
    for i, block in enumerate(blocks):
        match = _FRAME.match(block)
        is_python = match is not None and match[2] is not None and match[1].endswith((".py", ">"))
        if match and is_python and not _is_start(block) and owner_elsewhere(match[1]) in _USERS:
            return "".join(with_cell_names(b, r"In[\1]") for b in blocks[i:] if not _is_hidden(b))
    return ""


def _is_hidden(block: str) -> bool:
    match = _FRAME.match(block)
    return match is not None and owner_elsewhere(match[1]) in HIDDEN


def _is_start(block: str) -> bool:
    return _START.match(block) is not None


def stacks_text(found: Mapping[int, RankStacks]) -> str:
    """Return the stacks of ranks, equal ones once, and how they were found.

    Args:
        found: what `Mesh.stacks` returns.

    Example:
        >>> stack = '  File "<ipython-input-5-ab>", line 7, in <module>\\n    train()\\n'
        >>> print(stacks_text({rank: {"stacks": {"MainThread": stack}, "how": "asked"} for rank in (0, 1)}))
        ranks 0-1 (asked): cell or function
          In[5], line 7, in <module>
            train()
    """
    folded: dict[str, list[int]] = {}
    for rank, each in sorted(found.items()):
        folded.setdefault(_rank_text(each), []).append(rank)
    return "\n".join(f"{name_ranks(ranks)}{_how(ranks, found)}: {text}" for text, ranks in folded.items())


def _how(ranks: Sequence[int], found: Mapping[int, RankStacks]) -> str:
    """Return how stacks were found, with the ranks if that differs: " (0-2: asked, 3: faulthandler)"."""
    ways: dict[str, list[int]] = {}
    for rank in ranks:
        if found[rank].get("how"):
            ways.setdefault(found[rank]["how"], []).append(rank)
    if len(ways) < 2:
        return "".join(f" ({how})" for how in ways)
    return f" ({', '.join(f'{format_ranks(those)}: {how}' for how, those in ways.items())})"


def _rank_text(found: RankStacks) -> str:
    stacks = found.get("stacks")
    lines = [str(found["process"])] if found.get("process") else []
    if stacks is None:
        return "\n".join([*lines, _no_answer(found)] if found.get("missing") or not lines else lines)
    if found.get("missing"):
        lines.append(str(found["missing"]))
    for name, stack in sorted(stacks.items(), key=lambda item: item[0] != MAIN):
        part = user_part(stack)
        if part:
            title = "cell or function" if name == MAIN else name
            lines.append(f"{title}\n{part.rstrip()}")
    return "\n".join(lines or ["idle"])
