"""What people and terminals wrap around a log line: colours, Markdown, entities, typographic quotes.

All patterns are linear: no repetition stands inside another, and lines are capped before they come here.
"""

from __future__ import annotations

import html
import re

ANSI_BYTES = re.compile(
    rb"\x1b(?:\[[0-9;:<=>?]{0,64}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)|[@-Z\\^_=>78])"
)
"""Escape sequences: CSI (colours, cursor), OSC (titles, links), and the two-character ones."""

# A colour whose ESC was lost on the way: rsyslog's `#033[0m`, a literal `\x1b[0m`, a pasted `[36m`
# (of the usual codes only, and not before a bracket: `rate(x[1m])` is no colour).
_LOST_COLOUR = re.compile(
    r"(?:#033|\\x1b|\\u001b|\\033|\^\[|\u241b)\[(?:\d{1,3}(?:;\d{1,3}){0,5})?m"
    r"|\[(?:[012]|3[0-79]|4[0-7]|9[0-7]|[01];\d\d|38;[0-9;]{1,12})m(?!\])"
)
_ENTITY = re.compile(r"&(?:quot|amp|lt|gt|nbsp|apos|#x?[0-9a-fA-F]{1,6});")
_TAG = re.compile(r"</?(?:details|summary|pre|code|p|br|div|span|b|em|strong)(?: [^<>]{0,200})?/?>")
_LEADING = re.compile(r"[ \t\u00a0\u3000]*(?:> ?|[-*\u2022+] (?=[^-*+ ])|```(?:[a-z]{1,12}(?: |$))?|`(?!`))")
_NUMBERED = re.compile(r" {0,8}\d{1,7}(?:\t|:(?=[A-Z(\[]))")
"""`cat -n` and `grep -n`."""
_TYPOGRAPHIC = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u00a0": " ",
        "\u202f": " ",
        "\u3000": " ",
        "\u2011": "-",
        "\u200b": None,
        "\u2060": None,
        "\ufeff": None,
        "\x00": " ",
    }
)
_MAX_LAYERS = 8
_ENDLESS = re.compile(r"[0-9.,]{160,}|([^\w\s])\1{400,}")
_ENDLESS_KEPT = 80
"""No number has so many digits. Cut short, a run of them costs no reader's pattern more than linear time."""
FENCE = re.compile(r"\s*(?:```|~~~)")


def cleaned(text: str) -> str:
    """A line without colours, entities, quote marks of Markdown and leading blanks."""
    if "m" in text and "[" in text:
        text = _LOST_COLOUR.sub("", text)
    if not text.isascii() or "\x00" in text:
        text = text.translate(_TYPOGRAPHIC)
    if "<" in text:
        text = _TAG.sub("", text)
    if "&" in text and _ENTITY.search(text):
        text = html.unescape(text)
    if len(text) > 2 * _ENDLESS_KEPT:
        text = _ENDLESS.sub(lambda run: run[0][:_ENDLESS_KEPT] + "...", text)
    return _without_markdown(text)


def _without_markdown(text: str) -> str:
    for _ in range(_MAX_LAYERS):
        found = _LEADING.match(text) or _NUMBERED.match(text)
        if found is None:
            break
        text = text[found.end() :]
        if found.group().endswith("`") and text.endswith("`"):
            text = text[:-1]
    return text.strip()
