"""Foreign text stays visible and inert, wherever it is shown."""

from __future__ import annotations

import csv
import html.parser
import io
import unicodedata
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.report import sanitize

ANY_TEXT = st.text(alphabet=st.characters(), max_size=200)
HOSTILE = [
    "\x1b[2J\x1b[H", "\x1b]0;owned\x07",
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "\x1b]52;c;ZXZpbA==\x07",
    "abc\rdef", "a\u202eb\u202c", "\u2066x\u2069",
    "zero\u200bwidth\ufeff", "line\u2028sep\u2029", "\x9b31m", "\x00",
    "[bold red]markup[/bold red]", "</script><img src=x onerror=alert(1)>", "javascript:alert(1)", "\ud800",
    "\U000e0041tag", "e" + "\u0301" * 500,
]  # fmt: skip


def printable(text: str) -> bool:
    """No control, format, surrogate or line-breaking character is left."""
    return all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text_becomes_one_printable_line(text: str) -> None:
    shown = sanitize.clean(text)
    assert printable(shown)
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")


def test_every_character_that_does_not_show_itself_is_shown_as_its_code() -> None:
    every = [chr(c) for c in range(0x110000)]
    hidden = [c for c in every if not printable(c)]
    assert [c for c in hidden if sanitize.clean(c) == c] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_harmless(text: str) -> None:
    shown = sanitize.clean(text)
    assert printable(shown)
    assert shown


@settings(deadline=None)
@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=200))
def test_plain_text_is_left_alone(text: str) -> None:
    assert sanitize.clean(text) == text


def test_letters_of_the_world_are_left_alone() -> None:
    for text in ("Übergröße", "日本語のテキスト", "Ελληνικά", "हिन्दी", "שלום", "naïve café"):
        assert sanitize.clean(text) == text


def test_what_was_there_can_be_read_off() -> None:
    assert sanitize.clean("a\x1b[31mb\r\n\u202e\U000e0041") == "a\\x1b[31mb\\r\\n\\u202e\\U000e0041"


def test_long_text_is_cut_and_says_so() -> None:
    shown = sanitize.clean("x" * 10_000, limit=100)
    assert shown == "x" * 100 + "... (9,900 more characters)"


def test_combining_marks_do_not_climb() -> None:
    shown = sanitize.clean("e" + "\u0301" * 500)
    assert sum(1 for c in shown if unicodedata.combining(c)) <= 4


@settings(deadline=None)
@given(ANY_TEXT)
def test_no_cell_is_a_formula(text: str) -> None:
    cell = sanitize.csv_cell(text)
    assert not cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r"))
    buffer = io.StringIO()
    csv.writer(buffer).writerow([cell, "end"])
    assert next(csv.reader(io.StringIO(buffer.getvalue()))) == [cell, "end"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1+1", "\t=1", "＝1+1"])
def test_formulas_are_prefixed(text: str) -> None:
    assert sanitize.csv_cell(text).startswith(("'", "\\"))


class Reader(html.parser.HTMLParser):
    """Collects what a browser would see as elements and as text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.words = ""
        self.title: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.title = dict(attrs).get("title", self.title)

    def handle_data(self, data: str) -> None:
        self.words += data


@settings(deadline=None)
@given(ANY_TEXT)
def test_html_holds_text_and_no_element(text: str) -> None:
    reader = Reader()
    reader.feed(f'<p title="{sanitize.html(text)}">{sanitize.html(text)}</p>')
    reader.close()
    assert reader.tags == ["p"]
    assert reader.words == sanitize.clean(text)
    assert reader.title == sanitize.clean(text)


@settings(deadline=None)
@given(ANY_TEXT)
def test_xml_parses_and_gives_the_text_back(text: str) -> None:
    element = ET.fromstring(f'<a b="{sanitize.xml(text)}">{sanitize.xml(text)}</a>')
    assert (element.text or "") == sanitize.xml_text(text)
    assert element.get("b") == sanitize.xml_text(text)
    assert len(element) == 0
