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
    for pattern, template in _patterns():
        if found := pattern.fullmatch(sentence):
            return template.format(*found.groups())
    return None


@cache
def words(lang: Language) -> Words:
    """The words of `lang`; the catalogue is read once."""
    return Words(lang)


def _zh() -> dict[str, str]:
    from kvprobe.report.zh.catalogue import ZH

    return ZH


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """English forms with `{}` holes as linear patterns: a hole takes what holds no line break, and
    literal text stands between any two holes."""
    from kvprobe.report.zh.sentences import SENTENCES

    made = []
    for english, chinese in SENTENCES.items():
        pieces = (re.escape(piece) for piece in english.split("{}"))
        made.append((re.compile("([^\n]{1,400}?)".join(pieces)), chinese))
    return made
