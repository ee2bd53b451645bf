"""A report as one HTML page that opens offline.

The content security policy allows no origin: the one style sheet and the one script are named by their
hashes, and there is no image, frame, font, form or base. Every text goes through `sanitize.html`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

from kvprobe.report.assets import asset
from kvprobe.report.content import (
    MOST_SUBTITLE,
    Block,
    Bullets,
    Card,
    Facts,
    Figure,
    Inline,
    Num,
    Para,
    Pre,
    Report,
    Said,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    clipped,
)
from kvprobe.report.sanitize import html as safe
from kvprobe.report.words import HTML_LANG, Language, Words, words

LONG_CELL = 40
"""Characters from which on a cell may break anywhere: it can hold JSON without a space."""
SHORT_TABLE = 8
WIDE, NARROW = 900, 336
"""Widths in which each chart is drawn, px: a desk and a phone. The page shows one of the two."""
STYLE, SCRIPT = asset("page.css"), asset("page.js")
_NAME = re.compile(r"[^a-z0-9]+")
_CODE = re.compile(r"`([^`\n]{1,200})`")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; "
    "base-uri 'none'; form-action 'none'"
)


def render_page(report: Report) -> str:
    """The whole page."""
    lang: Language = "zh" if report.lang == "zh" else "en"
    w, writer = words(lang), _Writer(words(lang))
    badges = "".join(f"<li{_tone(b)}>{safe(b.text)}</li>" for b in report.badges)
    writer.level = 2  # no section heading stands above the first screen
    first = writer.blocks(report.first)
    writer.level = 3
    parts = "\n".join(writer.section(section) for section in report.sections)
    toc = "".join(f'<li><a href="#{_slug(s.id)}">{safe(s.title)}</a></li>' for s in report.sections)
    return f"""<!doctype html>
<html lang="{HTML_LANG[lang]}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{safe(clipped(report.title))}</title>
<style>{STYLE}</style>
</head>
<body data-csv="{safe(w("Save as CSV"))}" data-theme="{safe(w("Light / dark"))}">
<a class="skip" href="#main">{safe(w("Skip to the content"))}</a>
<header class="top">
<h1>{safe(clipped(report.title))}</h1>
<p class="sub">{safe(clipped(report.subtitle, MOST_SUBTITLE))}</p>
<ul class="badges">{badges}</ul>
</header>
<main id="main">
<section class="first" aria-label="{safe(w("Summary"))}">
{first}
</section>
<nav class="toc" aria-label="{safe(w("Contents"))}"><strong>{safe(w("Contents"))}</strong><ol>{toc}</ol></nav>
{parts}
</main>
<footer><p>{safe(report.footer)}</p></footer>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _slug(name: str) -> str:
    return _NAME.sub("-", name.lower()).strip("-") or "part"


def _tone(said: Said) -> str:
    return f' class="{said.tone}"' if said.tone else ""


def _inline(item: Inline) -> str:
    """Words with their tone; what stands between backticks is code, and no markup either way."""
    if isinstance(item, Num):
        note = f" <small>{safe(item.note)}</small>" if item.note else ""
        told = f'<span class="{item.tone}">{safe(item.text)}</span>' if item.tone else safe(item.text)
        return told + note
    if isinstance(item, str):
        return _words(item)
    attributes = _tone(item) + (' lang="en"' if item.foreign else "")
    tag = "strong" if item.strong else "span"
    if not attributes and not item.strong:
        return _words(item.text)
    return f"<{tag}{attributes}>{_words(item.text)}</{tag}>"


def _words(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", safe(text))


class _Writer:
    """Blocks to HTML; counts charts so that ids are unique."""

    def __init__(self, w: Words) -> None:
        self.w = w
        self.charts = 0
        self.level = 3
        """Of the headings of cards and charts."""
        self._kinds: dict[type, Callable[[Any], str]] = {
            Para: lambda b: f"<p>{_inline(b.text)}</p>",
            Bullets: lambda b: "<ul>" + "".join(f"<li>{_inline(i)}</li>" for i in b.items) + "</ul>",
            Facts: self.facts,
            Pre: lambda b: f"<pre>{_lines(b.text)}</pre>",
            Table: self.table,
            Figure: self.figure,
            Tiles: lambda b: f'<dl class="tiles">{"".join(map(_tile, b.tiles))}</dl>',
            Card: self.card,
        }

    def blocks(self, blocks: Any) -> str:
        return "\n".join(self.block(block) for block in blocks)

    def block(self, block: Block) -> str:
        return self._kinds[type(block)](block)

    def section(self, section: Section) -> str:
        slug = _slug(section.id)
        body = self.blocks(section.blocks)
        head = (
            f'<section id="{slug}" aria-labelledby="{slug}-h">\n<h2 id="{slug}-h">{safe(section.title)}</h2>'
        )
        return f"{head}\n{body}\n</section>"

    def facts(self, block: Facts) -> str:
        rows = "".join(f"<dt>{safe(name)}</dt><dd>{_inline(item)}</dd>" for name, item in block.rows)
        return f'<dl class="facts">{rows}</dl>'

    def card(self, block: Card) -> str:
        over = f'<p class="over">{safe(block.label)}</p>' if block.label else ""
        tone = f" {block.tone}" if block.tone else ""
        h = f"h{self.level}"
        head = f"{over}<{h}>{safe(block.title)}</{h}>"
        return f'<div class="card{tone}">{head}\n{self.blocks(block.blocks)}\n</div>'

    def table(self, block: Table, of: str = "") -> str:
        """`of` tells a chart's numbers from a table with the same caption."""

        def kind(i: int) -> str:
            return ' class="n"' if i in block.numeric else ""

        head = "".join(f'<th scope="col"{kind(i)}>{safe(c)}</th>' for i, c in enumerate(block.columns))
        body = "\n".join(
            "<tr>" + "".join(_cell(cell, kind(i)) for i, cell in enumerate(row)) + "</tr>"
            for row in block.rows
        )
        note = f'<p class="dim">{safe(block.note)}</p>' if block.note else ""
        # A few words in a table are for reading, not for sorting or saving.
        worth = bool(block.numeric) or len(block.rows) > SHORT_TABLE
        data = f' data-name="{_slug(block.name)}"' if worth else ""
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{safe(block.caption + of)}">'
            f"<table{data}><caption>{safe(block.caption)}</caption>"
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{note}"
        )

    def figure(self, block: Figure) -> str:
        self.charts += 1
        drawn = self.svg(block, WIDE, "wide") + self.svg(block, NARROW, "narrow")
        keys = "".join(f"<li>{_key(s)}{safe(s.label)}</li>" for s in block.legend)
        legend = f'<ul class="legend">{keys}</ul>' if keys else ""
        note = f'<p class="dim">{safe(block.note)}</p>' if block.note else ""
        label = safe(self.w("The numbers of this chart"))
        table = self.table(block.table, f" ({block.title})")
        h = f"h{self.level}"
        numbers = f"<details><summary>{label}</summary>{table}</details>"
        return (
            f"<figure><figcaption><{h}>{safe(block.title)}</{h}>"
            f"<p>{safe(block.description)}</p></figcaption>{legend}{drawn}{note}{numbers}</figure>"
        )

    def svg(self, block: Figure, width: int, kind: str) -> str:
        inside, height = block.draw(width)
        name = f"c{self.charts}{kind[0]}"
        return (
            f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" '
            f'aria-labelledby="{name}t {name}d"><title id="{name}t">{safe(block.title)}</title>'
            f'<desc id="{name}d">{safe(block.description)}</desc>{inside}</svg>'
        )


def _cell(cell: Inline, kind: str) -> str:
    value = ""
    if isinstance(cell, Num) and cell.value is not None:
        value = f' data-v="{cell.value:.10g}"'
    text = cell if isinstance(cell, str) else cell.text
    if not kind and len(text) > LONG_CELL:
        kind = ' class="say"'
    return f"<td{kind}{value}>{_inline(cell)}</td>"


def _tile(tile: Tile) -> str:
    tone = f" {tile.tone}" if tile.tone else ""
    note = f'<dd class="m">{safe(tile.note)}</dd>' if tile.note else ""
    return (
        f'<div class="tile"><dt>{safe(tile.label)}</dt><dd class="v{tone}">{safe(tile.value)}</dd>'
        f'<dd class="i">{safe(tile.interval)}</dd>{note}</div>'
    )


def _key(series: Series) -> str:
    """A swatch of the legend, drawn with the classes of the chart."""
    style = series.style
    shape = {
        "line": f'<path class="{style}" d="M1 6L21 6"/>',
        "dash": f'<line class="{style}" x1="1" y1="6" x2="21" y2="6"/>',
        "area": f'<rect class="{style}" x="4" y="1" width="14" height="10"/>',
        "dot": f'<circle class="{style}" cx="11" cy="6" r="4"/>',
    }[series.mark]
    return f'<svg viewBox="0 0 22 12" aria-hidden="true">{shape}</svg>'


def _lines(text: str) -> str:
    return "\n".join(safe(line) for line in text.splitlines())
