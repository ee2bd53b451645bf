"""Foreign words in Markdown: shown as they are, and nothing of them becomes markup.

What is escaped is what GitHub's Markdown (CommonMark 0.31 and its tables, links and strikethrough)
would otherwise read as markup, where it stands: `_` inside a word, a full stop or a hyphen in the
middle of a line mean nothing there, and escaping them would make a ticket hard to read.

Addresses, `@names`, `#numbers` and `:shortcodes:` cannot be escaped: GitHub makes links, mentions and
pictures of them after Markdown is done. They are shown as code, which it leaves alone.

A text ends up at the start of a line, in a heading, a list item or bold: `markdown` makes it safe for all
of them. In a cell of a table it never starts a line, which `cell` knows.
"""

from __future__ import annotations

import re

from kvprobe.report.sanitize import DEFAULT_LIMIT, clean

CODE_CHARS = 300
_BACKTICKS = re.compile(r"`+")
# A bar would end a table's cell even within code.
_CODE_OF_OURS = re.compile(r"`([^`\n|]{1,200})`")
_EMOJI = r":(?:100|1234|[+-]1|[0-9_+-]*[a-z][a-z0-9_+-]*):"
_ACTIVE = re.compile(
    r"(?:https?|ftp)://|www\.|\b(?:mailto|xmpp):"  # addresses
    r"|(?<![A-Za-z0-9])gh-[0-9]|[#@]\w"  # issues, mentions, mail
    rf"|{_EMOJI}",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\s`|]+")
_TRAILING = ".,;:!?)]}'\""
_ENTITY = re.compile(r"&(?=#?[0-9A-Za-z]{1,40};)")
_TAG = re.compile(r"<(?=[A-Za-z/!?]|\Z)")
# A backslash before a mark would escape it, and one at the end whatever comes next.
_BACKSLASH = re.compile(r"\\(?=[!-/:-@\[-`{-~]|\Z)")
_FLANKED = re.compile(r"\*+|~+|_+")
_OPENING = re.compile(r"\[")
# Brackets that nothing follows which would make a link of them, or at the start the definition of one;
# neither a task's box nor a footnote.
_PLAIN_BRACKETS = re.compile(r"\[(?![ xX]\]|\^|\])[^\[\]]{1,80}\](?![(\[])")
_LINE_START = re.compile(r"[-+](?=\s|\Z)|#{1,6}(?=\s|\Z)|>|[-=]+\s*\Z|(?:-\s*){3,}\Z")
_NUMBERED = re.compile(r"([0-9]{1,9})([.)])(?=\s|\Z)")
# A heading drops what it takes for its closing marks.
_CLOSING = re.compile(r"(?:\A|(?<=\s))#+\Z")


def markdown(text: object, *, limit: int = DEFAULT_LIMIT) -> str:
    """Text that Markdown shows as it is. `code` between backticks stays code, on which nothing acts."""
    shown = " ".join(clean(text, limit=limit).split())
    found = _pieces(shown)
    if not shown or shown[0] == "`":
        return found
    numbered = _NUMBERED.match(found)
    if numbered:
        return f"{numbered[1]}\\{found[numbered.start(2) :]}"
    return f"\\{found}" if _LINE_START.match(found) else found


def cell(text: object, *, limit: int = DEFAULT_LIMIT) -> str:
    """The same for a cell of a table, which starts no line."""
    return _pieces(" ".join(clean(text, limit=limit).split()))


def label(text: object) -> str:
    """The same with a colon behind it: `[a]: b` would define where `[a]` leads, and `:a` be a picture."""
    words = f"{clean(text)}:"
    found = markdown(words, limit=len(words))
    return f"\\{found}" if found.startswith("[") else found


def _pieces(shown: str) -> str:
    out: list[str] = []
    at = 0
    for found in _CODE_OF_OURS.finditer(shown):
        _add_words(out, shown[at : found.start()])
        out.append(code(found[1]))
        at = found.end()
    _add_words(out, shown[at:])
    return "".join(out)


def code(text: object) -> str:
    """Words as code within a line."""
    shown = clean(text, limit=CODE_CHARS)
    longest = max((len(run) for run in _BACKTICKS.findall(shown)), default=0)
    mark = "`" * (longest + 1)
    # Of code with a blank on either end, Markdown drops both.
    pad = " " if "`" in shown or (shown.strip() and shown[0] == shown[-1] == " ") else ""
    return f"{mark}{pad}{shown}{pad}{mark}" if shown else ""


def fence(text: str, language: str = "text") -> str:
    """A code block that `text` cannot end. Its lines are clean."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}{language}\n{text}\n{mark}"


def _add_words(out: list[str], text: str) -> None:
    """Appends `text`; each word on which GitHub would act as code, the rest escaped."""
    at = 0
    for found in _WORD.finditer(text):
        word = found[0]
        if not _ACTIVE.search(word):
            continue
        inside = word.lstrip("([{'\"").rstrip(_TRAILING) or word
        if not _ACTIVE.search(inside):  # an emoji's colon was trimmed off
            inside = word
        start = found.start() + word.index(inside)
        out.append(_escaped(text[at:start]))
        out.append(f"`{inside}`")
        at = start + len(inside)
    out.append(_escaped(text[at:]))


def _escaped(text: str) -> str:
    """A piece between two pieces of code."""
    if not text:
        return ""
    plain = {f.start() for f in _PLAIN_BRACKETS.finditer(text) if f.start() or text[f.end() :][:1] != ":"}
    marks: dict[int, str] = {}
    for found in _BACKSLASH.finditer(text):
        marks[found.start()] = "\\\\"
    for found in _FLANKED.finditer(text):
        if not _inert(text, found.start(), found.end()):
            marks |= {i: f"\\{text[i]}" for i in range(found.start(), found.end())}
    marks |= {f.start(): "\\[" for f in _OPENING.finditer(text) if f.start() not in plain}
    marks |= {f.start(): "&lt;" for f in _TAG.finditer(text)}
    marks |= {f.start(): "&amp;" for f in _ENTITY.finditer(text)}
    marks |= {i: f"\\{char}" for i, char in enumerate(text) if char in "`|$"}
    marks |= {f.start(): "\\#" for f in _CLOSING.finditer(text)}
    return "".join(marks.get(i, char) for i, char in enumerate(text)) if marks else text


def _inert(text: str, start: int, end: int) -> bool:
    """Whether a run of `*`, `_` or `~` can open and close nothing: blanks on both sides, or, of `_`, a
    word on both sides. The ends of the text are neither: more may stand there."""
    if start == 0 or end == len(text):
        return False
    before, after = text[start - 1], text[end]
    if before.isspace() and after.isspace():
        return True
    return text[start] == "_" and before.isalnum() and after.isalnum()
