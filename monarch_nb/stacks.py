"""Where ranks stand: their Python stacks, equal ones once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from monarch_nb._shape import name_ranks

MAIN = "MainThread"
_FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (.+)')
_START = re.compile(r'\A\s*File "<string>", line 1, in <module>\n')
"""How the program that became a rank was started; below it, `<string>` is code that the user has exec'ed."""
_OURS = ("/monarch_nb/_", "/IPython/", "<frozen ", "/lib/python3", "monarch_nb-keeper")


def innermost(found: Mapping[str, Any]) -> str:
    """Return in one line where a rank stands: the user's innermost frame, or what the kernel says of the process."""
    if found.get("process"):
        return str(found["process"])
    stacks = found.get("stacks")
    if not stacks:
        return "does not answer: its threads can't run Python just now"
    frames = _FRAME.findall(_START.sub("", stacks.get(MAIN, "")))
    own = [f for f in frames if not any(part in f[0] for part in _OURS)]
    if not own and (not frames or any(function == "take" for _, _, function in frames)):
        return "is idle"  # it waits for mail
    own = own or frames[-1:]
    file, line, function = own[-1]
    text = _line_after(stacks[MAIN], file, line)
    return f"is at {_place(file)}, line {line}, in {function}{': ' + text if text else ''}"


def _line_after(stack: str, file: str, line: str) -> str:
    lines = stack.splitlines()
    for i, found in enumerate(lines[:-1]):
        if f'File "{file}", line {line},' in found and not lines[i + 1].startswith("  File"):
            return lines[i + 1].strip()
    return ""


def _place(file: str) -> str:
    cell = re.search(r"ipython-input-(\d+)-", file)
    return f"In[{cell[1]}]" if cell else file


def user_part(stack: str) -> str:
    """Return a thread's stack from the user's first frame on; all of it if there's none."""
    blocks = re.split(r"(?m)^(?=  File )", _START.sub("", stack))
    blocks = [b for b in blocks if b.strip()]
    for i, block in enumerate(blocks):
        match = _FRAME.match(block)
        if match and not any(part in match[1] for part in _OURS):
            return "".join(re.sub(r'File "[^"]*ipython-input-(\d+)-[^"]*"', r"In[\1]", b) for b in blocks[i:])
    return ""


def stacks_text(found: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the stacks of ranks, equal ones once, those with user code first.

    Args:
        found: by rank: "stacks" by thread name, or None if the rank didn't answer; "process": what the kernel says.
    """
    folded: dict[str, list[int]] = {}
    for rank, each in sorted(found.items()):
        folded.setdefault(_rank_text(each), []).append(rank)
    blocks = [f"{name_ranks(ranks)}: {text}" for text, ranks in folded.items()]
    return "\n".join(blocks)


def _rank_text(found: Mapping[str, Any]) -> str:
    stacks = found.get("stacks")
    lines = [str(found["process"])] if found.get("process") else []
    if stacks is None:
        return "\n".join(lines or ["does not answer: its threads can't run Python just now"])
    for name, stack in sorted(stacks.items(), key=lambda item: item[0] != MAIN):
        part = user_part(stack)
        if part:
            title = "cell or function" if name == MAIN else name
            lines.append(f"{title}\n{part.rstrip()}")
    return "\n".join(lines or ["idle"])
