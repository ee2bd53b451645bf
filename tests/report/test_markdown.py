"""Foreign text in Markdown: read by a real CommonMark parser, it is the same text and nothing else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvprobe.report.content import Card, Facts, Figure, Num, Para, Pre, Report, Section, Table, Tiles
from kvprobe.report.markdown_page import MOST_CHART_ROWS, render_markdown
from kvprobe.report.markdown_text import cell, fence, label, markdown
from kvprobe.report.sanitize import clean

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PLAIN = {"text", "text_special", "code_inline", "inline", "paragraph_open", "paragraph_close"}
ACTIVE = re.compile(
    r"(?:https?|ftp)://\w|www\.|[#@]\w|gh-\d|mailto:|:(?:[a-z0-9_+-]*[a-z][a-z0-9_+-]*|100):", re.I
)

MARKS = [
    *"\\`*_{}[]()<>#+-.!|~&$:@=/^\"' \n\tax1",
    *(
        "](",
        "![",
        "```",
        "**",
        "~~",
        "[x]",
        "1. ",
        "- ",
        "&lt;",
        "<b>",
        "http://",
        "www.",
        "@me",
        "#1",
        ":a:",
    ),
]
MARKED = st.lists(st.sampled_from(MARKS), max_size=24).map("".join)
ANY_TEXT = st.text(alphabet=st.characters(), max_size=80)

HOSTILE = [
    "[click](javascript:alert(1))", "![x](http://evil/x.png)", "[a][b]", "[a]: http://evil", "[^1]",
    "[x] done", "[a\\](http://evil)", "[1, 2](http://evil)", "[5, 12) and a](http://evil)",
    "[1, 2]: http://evil", "<img src=x onerror=alert(1)>", "</details>", "<!-- hidden", "<?php",
    "<https://evil>", "&lt;b&gt;", "&#60;b", "**bold**", "__init__", "_a_", "*a*", "~~gone~~", "~a~",
    "`code` and ``more``", "`", "a`b", "\\", "\\*a\\*", "# heading", "## ", "a #", "> quote", "- item",
    "+ item", "* item", "1. item", "12) item", "---", "- - -", "===", "***", "```", "~~~",
    "| a | b |\n|---|---|", "a | b", "$x$", "@everyone", "me@evil.example", "fixes #1, GH-2", "org/repo#3",
    "https://evil.example/x.", "(www.evil.example)", "file.py:100: :smile:", "mailto:a@b.c", ":100:",
    "`code @everyone <b>`", "`a|b`", "http://`x`", "a\\", "trailing  \nbreak", "    indented", "[[a]](b)",
    "!", "[", "`a` [b](c)", "[`a`](c)", "**`a`", "x **y", "snake_case_name and __dunder__", "5 * 3 _ 2",
]  # fmt: skip


def expected(text: str) -> str:
    return " ".join(clean(text).split())


def flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from flat(token.children or [])


def read(source: str, *, more: frozenset[str] = frozenset()) -> str:
    return told(PARSER.parse(source), source, more)


def told(tokens: list[Token], source: str, more: frozenset[str] = frozenset()) -> str:
    """The words that a reader sees. Anything but text and code within a paragraph fails."""
    said = []
    for token in flat(tokens):
        assert token.type in PLAIN | more, (token.type, source)
        if token.type == "text":
            assert not ACTIVE.search(token.content), (token.content, source)
        if token.type in ("text", "text_special", "code_inline"):
            said.append(token.content)
    return "".join(said)


def same(shown: str, text: str) -> None:
    """The backticks around code of ours are its marks; all else is read as it was written."""
    assert shown.replace("`", "") == expected(text).replace("`", "")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_read_as_itself_and_is_nothing_else(text: str) -> None:
    everywhere(text)


@settings(deadline=None, max_examples=400)
@given(MARKED)
def test_any_marks_are_read_as_themselves(text: str) -> None:
    everywhere(text)


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text_is_read_as_itself(text: str) -> None:
    everywhere(text)


def everywhere(text: str) -> None:
    """Alone, in a heading, in a list, in bold, before a colon and in a cell."""
    shown = markdown(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in shown)
    same(read(shown), text)
    heading = frozenset({"heading_open", "heading_close"})
    same(read(f"## {shown}", more=heading), text)
    item = frozenset({"bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"})
    same(read(f"- {shown}", more=item), text)
    same(read(f"* {label(text)} x", more=item).removesuffix(" x"), f"{text}:")
    if expected(text):
        same(read(f"a: **{shown}** b", more=frozenset({"strong_open", "strong_close"}))[3:-2], text)
    table = PARSER.parse(f"| a | b |\n| --- | --- |\n| {cell(text)} | end |\n")
    cells = [t for t in flat(table) if t.type == "inline"]
    assert len(cells) == 4, "a cell stays one cell"
    assert cells[3].content == "end"
    same(told([cells[2]], cells[2].content), text)


@pytest.mark.parametrize(
    "text",
    [
        "shared_prefix: run report, 0.97 times [0.95, 0.99] (a 95 % interval).",
        "TTFT p95 410 ms [384 - 498 ms]; slope +13.90 [+13.21, +14.58]!",
        "ttft.p95 < 1s & error_rate > 5 %",
        "backlog -0.04 req/s: not growing",
        "-5 ms, 1.5 GiB, 3 x 4 = 12, a/b, \\x1b",
        "set `--max-num-seqs 8`, then 0.9 is fine",
    ],
)
def test_what_means_nothing_to_markdown_is_not_escaped(text: str) -> None:
    assert markdown(text) == text
    assert cell(text) == text


def test_addresses_and_names_are_shown_as_code() -> None:
    assert markdown("-> http://127.0.0.1:8000 (tiny).") == "-> `http://127.0.0.1:8000` (tiny)."
    assert markdown("ask @someone, see #12") == "ask `@someone`, see `#12`"
    assert cell("-") == "-"


def test_a_fence_holds_whatever_stands_in_it() -> None:
    hostile = "```\n# heading\n````` <b>"
    (token,) = PARSER.parse(fence(hostile))
    assert token.type == "fence"
    assert token.content == hostile + "\n"


def report(*blocks: object) -> Report:
    section = Section("a", "A section", list(blocks))  # type: ignore[arg-type]
    return Report(lang="en", title="t", subtitle="s", badges=[], first=[], sections=[section])


def series(n: int) -> Table:
    rows = [[Num(str(i), float(i)), f"row-{i}"] for i in range(n)]
    return Table("series", "Series", ["t", "name"], rows, numeric=frozenset({0}))


def test_a_chart_gives_rows_from_its_first_to_its_last_and_a_table_stands_once() -> None:
    table = series(100)
    chart = Figure("c", "Chart", "What it shows.", lambda width: ("", 0), table, note="A note.")
    text = render_markdown(report(chart))
    shown = re.findall(r"row-(\d+) ", text)
    assert (len(shown), shown[0], shown[-1]) == (MOST_CHART_ROWS, "0", "99")
    assert f"{MOST_CHART_ROWS} of 100 rows, evenly spread" in text
    assert "A note." in text
    short = series(3)
    chart = Figure("c", "Chart", "What it shows.", lambda width: ("", 0), short)
    assert render_markdown(report(chart, short)).count("row-1 ") == 1


def test_the_blocks_of_a_page_are_blocks_of_markdown() -> None:
    hostile = "<b>[x](y)\n# z @all"
    text = render_markdown(
        report(
            Facts([("[a]", hostile)]),
            Pre("```\n" + hostile),
            Para(hostile),
            Card(hostile, [], "", "l"),
            Tiles([]),
        )
    )
    types = {t.type for t in flat(PARSER.parse(text))}
    assert not types & {"html_block", "html_inline", "link_open", "image", "code_block"}
    assert sum(t.type == "heading_open" for t in PARSER.parse(text)) == 2
    assert sum(t.type == "fence" for t in PARSER.parse(text)) == 1
