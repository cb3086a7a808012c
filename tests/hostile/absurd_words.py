"""What nobody would type: words for arguments, drawn at random, put behind real verbs and real flags."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

BROKEN = [
    "--no-such-flag",
    "--",
    "-",
    "---",
    "🎉",
    "a" * 300,
    "'",
    '"',
    "\\",
    "'open",
    "x y z 1 2 3 4 5",
    "\x00",
    "\x1b[31m",
    "é\u0301",
    "\u202e",
    "ﬁ",
    "１２",
    "٣",
    "\ud7ff",
]
"""No verb takes any of them."""
BROKEN_FOR_ALL = ["--no-such-flag", "---", "🎉", "a" * 300]
"""No verb without an argument takes them either: `start --` starts a mesh."""
NUMBERS = [
    "-1",
    "0",
    "00",
    "+1",
    "1e99",
    "999999999",
    "9" * 400,
    "NaN",
    "inf",
    "-inf",
    "0x10",
    "1_000",
    "1,5",
    "1.5",
    "½",
    "10**9",
    "True",
    "None",
]
TIMES = ["-5s", "0s", "1y", "1e400s", "5 parsecs", "s", "1h1h", "30m-", "nan", "24hh", "1d2", "∞"]
SIZES = ["-1M", "1Z", "0K", "1.5.5G", "GB", "1Mi i", "9999999999999G", "1e3M", "M1"]
RANKS = [
    "all,all",
    "0,,1",
    "0-",
    "-0",
    "5-1",
    "0-999999999",
    "::0",
    "::-1",
    ":::",
    "0:0",
    "gpus",
    "gpus=",
    "gpus=0=1",
    "=",
    "hosts=9",
    "gpus=(0",
    "gpus=)",
    "ranks(",
    "ranks()",
    "ranks(ranks(ranks(0)))",
    "0 1",
    "0--1",
    "1-2-3",
    "*",
    "0|1",
    "gpus=all",
    "GPUS=0",
    "0;1",
    "999999999999999999999",
    "procs=::-999999999999",
    "," * 300,
    "(" * 300,
    "0," * 5000,
]
NAMES = [
    "rank",
    "__class__",
    "x.y",
    "x[0]",
    "x[",
    "3x",
    "None",
    "class",
    "no_such_name",
    "a.b.c.d",
    "__import__('os')",
    "x;y",
    "..",
    "..name",
    "x.",
    "*",
    "$HOME",
    "{x}",
    "{",
    "}",
    "%s",
    "lambda:0",
    "get_ipython",
]
PLACES = [
    "/no/such/dir/x.py",
    "/dev/null/x.ipynb",
    "/proc/1/mem",
    "/",
    ".",
    "..",
    "~nobody/x.py",
    "x.exe",
    ".py",
    "-.py",
    "a/" * 2000 + "x.py",
    "In[999]:1",
    "In[]:",
    ":5",
    "x.py:",
    "x.py:0",
    "x.py:-1",
    "x.py:1:1",
    "x.py:99999999999999999999",
]
SIZED = [
    "gpus=0",
    "gpus=-1",
    "gpus=",
    "=2",
    "gpus=1,gpus=2",
    "gpus=999999999",
    "gpus=x",
    "gpus=1.5",
    "gpus==1",
    "a=1,b=1,c=1,d=1,e=0",
    "gpus=2;hosts=1",
    "=",
    ",",
    "gpus=1,",
    "a b=1",
    "é=1",
]
WORDS = [
    *NUMBERS,
    *TIMES,
    *SIZES,
    *RANKS,
    *NAMES,
    *PLACES,
    *SIZED,
    "",
    " ",
    "on",
    "off",
    "all",
    "heal",
    "{}",
    "[]",
    "None",
]

ONLY_BROKEN = {"start", "stop", "detach", "top", "doctor", "auto", "help", "list"}
"""What these do when they're understood would take long or end what others are tried on: they get a word
that can't be understood.
"""
LEFT_OUT = {"--follow", "-f", "--force", "--native", "--help", "-h"}
"""They would go on for ever, or take long."""


def absurd_line(verb: str, parsers: Mapping[str, Any], rng: Random) -> str:
    """Return what somebody has typed behind `%mesh`."""
    flags = [f for action in parsers[verb]._actions for f in action.option_strings if f not in LEFT_OUT]
    words = []
    for _ in range(rng.randrange(4)):
        word = rng.choice(WORDS if rng.random() < 0.8 else BROKEN)
        kind = rng.randrange(3) if flags else 0
        words += (
            [word]
            if kind == 0
            else [rng.choice(flags), word]
            if kind == 1
            else [f"{rng.choice(flags)}={word}"]
        )
    if verb in ONLY_BROKEN:
        words.append(rng.choice(BROKEN_FOR_ALL))
    if rng.random() < 0.1:
        verb = rng.choice(
            [verb.upper(), verb[:-1], verb + "x", verb.replace("-", "_") + "_", "🎉", "-" + verb, verb * 50]
        )
    return " ".join([verb, *(_quoted(w, rng) for w in words)]).replace("\n", " ")


def _quoted(word: str, rng: Random) -> str:
    quote = rng.choice(["", "", "'", '"'])
    return quote + word + quote if word else "''"


def absurd_ranks(rng: Random) -> str:
    """Return a set of ranks that is often wrong."""
    if rng.random() < 0.3:
        return rng.choice(RANKS + NUMBERS)
    letters = [
        "0",
        "1",
        "3",
        "7",
        "-",
        ",",
        ":",
        "=",
        "(",
        ")",
        " ",
        "gpus",
        "hosts",
        "ranks(",
        "all",
        "99",
        "é",
        "\t",
        "-1",
        "::2",
    ]
    return "".join(rng.choice(letters) for _ in range(rng.randrange(12)))
