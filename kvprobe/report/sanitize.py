"""The one place where foreign text is made harmless before it is shown.

Foreign is whatever a server, a model, a file or a header said. It can hold escape sequences that
repaint a terminal, marks that reverse the reading order, and markup of the page that it lands on.
Nothing is dropped from a terminal or a table in silence: what is not shown as itself is shown as its
code, so that a reader sees that something was there. `report.markdown_text` rests on it for Markdown.
"""

from __future__ import annotations

import html as _html
import re
import unicodedata

DEFAULT_LIMIT = 2_000
"""Characters; longer text is cut, and says so."""

_CONFUSING = re.compile(
    "[\u0000-\u001f\u007f-\u009f"  # C0 and C1 controls, ESC and CR among them
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, Arabic mark, fillers
    "\u200b-\u200f\u2028-\u202f\u205f-\u206f"  # zero width, separators, bidi overrides and isolates
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"  # filler, variation selectors, byte-order mark
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2"  # other format characters of scripts
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\ud800-\udfff"  # lone surrogates cannot be encoded
    "\U000e0000-\U000e0fff]"  # tag characters: invisible text
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\x1b"}
_XML_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FORMULA_START = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def clean(text: object, *, limit: int = DEFAULT_LIMIT) -> str:
    """One printable line for a terminal: controls and invisible marks appear as their codes.

    The result holds no character that moves the cursor, changes colours or reorders what stands
    beside it. It is plain text: print it with `rich.text.Text`, never as markup.
    """
    raw = str(text)
    shown = _CONFUSING.sub(_code, raw[:limit])
    # A run of combining marks climbs over neighbouring lines; a few are ordinary spelling.
    shown = _cap_combining(shown)
    return f"{shown}... ({len(raw) - limit:,} more characters)" if len(raw) > limit else shown


def _code(match: re.Match[str]) -> str:
    char = match[0]
    if char in _NAMED:
        return _NAMED[char]
    number = ord(char)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _cap_combining(text: str, most: int = 4) -> str:
    if text.isascii():
        return text
    out: list[str] = []
    run = 0
    for char in text:
        run = run + 1 if unicodedata.combining(char) else 0
        if run <= most:
            out.append(char)
        elif run == most + 1:
            out.append("\\u...")
    return "".join(out)


def csv_cell(text: object, *, limit: int = DEFAULT_LIMIT) -> str:
    """A cell that no spreadsheet takes for a formula (quoting is the csv module's business)."""
    shown = clean(text, limit=limit)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA_START) else shown


def html(text: object, *, limit: int = DEFAULT_LIMIT) -> str:
    """Text for an HTML element or a quoted attribute."""
    return _html.escape(clean(text, limit=limit), quote=True)


def xml(text: object, *, limit: int = DEFAULT_LIMIT) -> str:
    """Text for an XML element or a quoted attribute: characters that XML 1.0 forbids are gone."""
    return _html.escape(xml_text(text, limit=limit), quote=True)


def xml_text(text: object, *, limit: int = DEFAULT_LIMIT) -> str:
    """The same for a writer that escapes markup itself (ElementTree does)."""
    return _XML_FORBIDDEN.sub("", clean(text, limit=limit))
