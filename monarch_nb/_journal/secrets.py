"""Masks probable secrets before they are written to disk: keys and tokens of well-known forms, and values
named as passwords.

Each is replaced by as many asterisks, so that what is around it keeps its place. It's a net for mishaps, with
holes: what mustn't be kept in any case belongs into a cell whose first line has `# nolog`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_NOLOG = re.compile(r"\s*[^\n]*#\s*nolog\b")
_QUOTE = rb"\\*[\"']"
_IS = rb"(?:" + _QUOTE + rb"\]?)?\s*[:=]\s*"
_QUOTED = _IS + _QUOTE + rb"(?P<quoted>[^\"'\\\n]+)"
_BARE = rb"\s*=\s*(?P<bare>[^\s\"'\\,;&=(){}\[\]]++)(?![(\[])"
_VALUE = rb"(?:" + _QUOTED + rb"|" + _BARE + rb")"
_WORD = rb"[\w.~+/=-]"
_ASSIGNS = b"=\"'"
"""One of these is in each `_VALUE`."""
_FORMS = (
    ((b"AKIA", b"ASIA"), b"A", rb"[0-9A-Z]{20}"),  # AWS
    ((b"hf_",), b"_", rb"hf_[A-Za-z0-9]{16,}"),  # Hugging Face
    ((b"ghp_", b"gho_", b"ghs_"), b"_", rb"gh._[A-Za-z0-9]{16,}"),
    ((b"github_pat_",), b"_", rb"github_pat_\w{16,}"),
    (
        (b"glpat-", b"sk-", b"xox"),
        b"-",
        rb"(?:glpat-|sk-|xox[abprs]-)[\w-]{16,}",
    ),  # GitLab, OpenAI and the like, Slack
    ((b"assw", b"ASSW"), _ASSIGNS, rb"(?i:assw(?:or)?d)" + _VALUE),
    ((b"ecret", b"ECRET"), _ASSIGNS, rb"(?i:ecret)" + _VALUE),
    (
        (b"key", b"KEY"),
        _ASSIGNS,
        rb"(?i:(?:(?<=pi_)|(?<=ess_)|(?<=ate_)|(?<=ret_)|(?<=api)|(?<=ess)|(?<=ate)|(?<=ret))key)" + _VALUE,
    ),
    (
        (b"oken", b"OKEN"),
        _ASSIGNS,
        rb"(?i:oken)(?:" + _QUOTED + rb"|(?:(?<=_TOKEN)|(?<=[?&]token))" + _BARE + rb")",
    ),
    ((b"earer ",), b" ", rb"earer\s+(?P<header>" + _WORD + rb"{16,})"),
    (
        (b"uthorization",),
        b"z",
        rb"uthorization"
        + _IS
        + rb"(?:"
        + _QUOTE
        + rb")?(?i:bearer|basic|token)\s+(?P<header>"
        + _WORD
        + rb"+)",
    ),
    ((b"://",), b"@", rb"://[^\s/:@\"'\\]*:(?P<url>[^\s/@\"'\\]+)@"),
    ((b"-----BEGIN ",), b"-", rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<pem>[\s\S]+?)(?:-----END|\Z)"),
)
"""For each form: quick substrings to search for; bytes of which all that matches has one, for a byte is found
much faster; and the pattern that must match there; its group is masked, or the whole match.
"""
_BY_BYTES = {
    of: tuple((sign, re.compile(form)) for signs, those, form in _FORMS if those == of for sign in signs)
    for _, of, _ in _FORMS
}
_NEEDED = tuple((tuple(bytes([byte]) for byte in of), signs) for of, signs in _BY_BYTES.items())


def mask(data: bytes) -> bytes:
    """Return text with probable secrets masked by asterisks; the text itself if there are none.

    >>> mask(b"password = 'hunter2'; login(hf_abcdefghijklmnopqrst)")
    b"password = '*******'; login(***********************)"
    >>> mask(b"password = getpass()")
    b'password = getpass()'
    """
    spans: list[tuple[int, int]] = []
    for needed, signs in _NEEDED:
        if any(byte in data for byte in needed):
            for sign, form in signs:
                if sign in data:
                    spans += _spans(data, sign, form)
    if not spans:
        return data
    masked = bytearray(data)
    for begin, end in spans:
        masked[begin:end] = b"*" * (end - begin)
    return bytes(masked)


def _spans(data: bytes, sign: bytes, form: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    at = data.find(sign)
    while at >= 0:
        found = form.match(data, at)
        if found:
            yield found.span(found.lastgroup or 0)
        at = data.find(sign, at + len(sign))


def mask_all(value: T) -> T:
    """Return plain data with its texts masked."""
    return _mask_any(value)  # type: ignore[no-any-return]


def _mask_any(value: Any) -> Any:
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        masked = mask(data)
        return value if masked is data else masked.decode("utf-8", "surrogatepass")
    if isinstance(value, dict):
        return {k: _mask_any(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_any(v) for v in value]
    return value


def is_unlogged(source: str) -> bool:
    """Say whether a cell is excluded from the journal.

    >>> is_unlogged("# nolog\\nlogin()"), is_unlogged("login()  # nolog"), is_unlogged("x = 1\\n# nolog")
    (True, True, False)
    """
    return _NOLOG.match(source) is not None


def logged_source(source: str) -> str:
    """Return the source of a cell as the journal keeps it.

    >>> logged_source("# nolog\\nlogin()"), logged_source("login()")
    ('# nolog', 'login()')
    """
    return "# nolog" if is_unlogged(source) else source
