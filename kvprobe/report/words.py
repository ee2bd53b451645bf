"""Every word of a page in the reader's language.

`w = words("zh"); w("{n} requests", n=3)`: the English sentence is the key, as in gettext, so the code
reads as the page does. A test walks the source and holds the Chinese catalogue complete. What a rule, a
server or a file said is not a word of the page: it stays as it is and is marked as such
(`content.Said`), unless its sentence is known (`known`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, Literal

Language = Literal["en", "zh"]
LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh")
HTML_LANG: Final[dict[Language, str]] = {"en": "en", "zh": "zh-Hans"}


class Words:
    """The words of one language."""

    def __init__(self, lang: Language) -> None:
        self.lang: Language = lang
        self._catalogue: dict[str, str] = _zh() if lang == "zh" else {}

    def __call__(self, text: str, /, **values: object) -> str:
        """`text` in this language, its `{names}` filled in."""
        template = self._catalogue.get(text, text)
        return template.format(**values) if values else template

    def cause(self, cause: str) -> str:
        """A cause in plain words; the id itself for one that the list does not have."""
        from kvprobe.report.cause_words import CAUSE_WORDS

        if self.lang == "zh":
            from kvprobe.report.zh.causes import CAUSES

            if cause in CAUSES:
                return CAUSES[cause]
        return CAUSE_WORDS.get(cause, cause)

    def advice(self, cause: str) -> str | None:
        """In Chinese: what usually mends a cause, since a rule's own sentences may be English only."""
        if self.lang != "zh":
            return None
        from kvprobe.report.zh.causes import ADVICE

        return ADVICE.get(cause)

    def known(self, sentence: str) -> str | None:
        """A sentence of a rule in this language, its numbers kept; null when its form is not known."""
        if self.lang == "en":
            return sentence
        whole = _translated(sentence)
        if whole is not None:
            return whole
        pieces = [_translated(piece) for piece in _SENTENCE_END.split(sentence)]
        return "".join(piece or "" for piece in pieces) if None not in pieces else None


_SENTENCE_END = re.compile(r"(?<=[.)]) (?=[A-Z(])")


def _translated(sentence: str) -> str | None:
    """One sentence, or what stands for one; null when its form is not known."""
    for pieces, template in _forms():
        if (values := _values(sentence, pieces)) is not None:
            return template.format(*values)
    return None


MOST_VALUE_CHARS = 160


def _values(sentence: str, pieces: tuple[str, ...]) -> list[str] | None:
    """What fills the holes between `pieces`; null when the sentence has another form. Each piece is taken
    where it comes first, so the work is linear whatever foreign text a sentence quotes."""
    if not sentence.startswith(pieces[0]):
        return None
    if len(pieces) == 1:
        return [] if sentence == pieces[0] else None
    values, at = [], len(pieces[0])
    end = len(sentence) - len(pieces[-1])
    for piece in pieces[1:-1]:
        found = sentence.find(piece, at + 1, end)
        if found < 0:
            return None
        values.append(sentence[at:found])
        at = found + len(piece)
    if end <= at or not sentence.endswith(pieces[-1]):
        return None
    values.append(sentence[at:end])
    return values if all(len(v) <= MOST_VALUE_CHARS for v in values) else None


@cache
def words(lang: Language) -> Words:
    """The words of `lang`; the catalogue is read once."""
    return Words(lang)


def _zh() -> dict[str, str]:
    from kvprobe.report.zh.catalogue import ZH

    return ZH


@cache
def _forms() -> list[tuple[tuple[str, ...], str]]:
    """English forms as the pieces between their `{}` holes, with the Chinese; whole sentences first,
    then the forms with the most text of their own."""
    from kvprobe.report.zh.sentences import SENTENCES

    forms = [(tuple(english.split("{}")), chinese) for english, chinese in SENTENCES.items()]
    return sorted(forms, key=lambda form: (len(form[0]) > 1, -sum(map(len, form[0]))))
