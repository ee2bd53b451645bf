"""The tree of shared prefixes of a run's prompts: an indented list whose bars are the tokens saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvprobe.report.charts_capacity import number
from kvprobe.report.charts_memory import NARROW_BELOW
from kvprobe.report.content import Figure, Inline, Num, Said, Table
from kvprobe.report.scales import Scale, text_width
from kvprobe.report.svg import FONT_PX, Drawing, fitting
from kvprobe.report.words import Words
from kvprobe.summary.units import percent, whole

FACT = "prefix_analysis"
MOST_BARS = 12
MOST_DEPTH = 6
INDENT_PX = 14.0
TEXT_CHARS = 48
SHOWN_WAYS = 3


@dataclass(frozen=True, slots=True)
class Branch:
    """A start that several prompts share; `saved_tokens` beyond what its parent saves."""

    depth: int
    tokens: float
    prompts: float
    saved_tokens: float
    before: str
    after: str


def branches(analysis: Mapping[str, Any]) -> list[Branch]:
    """The nodes of the analysis, parents first; those that are no nodes are left out."""
    nodes = analysis.get("tree")
    found = []
    for node in nodes if isinstance(nodes, list) else []:
        if not isinstance(node, Mapping):
            continue
        depth, tokens, prompts, saved = (
            number(node.get(k)) for k in ("depth", "tokens", "prompts", "saved_tokens")
        )
        if tokens is None or prompts is None or saved is None or min(tokens, prompts, saved) < 0:
            continue
        ways = node.get("after")
        ways = [str(t)[:TEXT_CHARS] for t in ways[:SHOWN_WAYS]] if isinstance(ways, list) else []
        before = str(node.get("before") or "")[-TEXT_CHARS:]
        level = int(min(max(depth or 0, 0), MOST_DEPTH))
        found.append(Branch(level, tokens, prompts, saved, before, " | ".join(ways)))
    return found


def tree_chart(w: Words, analysis: object) -> Figure | None:
    """Null where nothing substantial is shared, or nobody looked."""
    kept = branches(analysis) if isinstance(analysis, Mapping) else []
    total = number(analysis.get("prompt_tokens")) if isinstance(analysis, Mapping) else None
    if not kept or not isinstance(analysis, Mapping):
        return None
    biggest = sorted(range(len(kept)), key=lambda i: -kept[i].saved_tokens)[:MOST_BARS]
    shown = [kept[i] for i in sorted(biggest)]
    about = w("estimated") if analysis.get("estimated") else w("exact")
    return Figure(
        name="prefix-tree",
        title=w("The tree of shared prefixes"),
        description=w(
            "Each row is a start that several prompts share, further in what shares more. A bar is the "
            "prompt tokens that its reuse can save beyond the row above it; token counts are {how}.",
            how=about,
        ),
        draw=lambda width: _draw(w, shown, width),
        table=_table(w, kept, total),
        note=w("{n} of {all} nodes are drawn, those that save most.", n=len(shown), all=len(kept))
        if len(kept) > len(shown)
        else "",
    )


def _label(w: Words, b: Branch) -> str:
    return w("{t} tokens, {n} prompts", t=whole(b.tokens), n=whole(b.prompts))


def _draw(w: Words, shown: Sequence[Branch], width: int) -> tuple[str, int]:
    """Labels in a column of their own (above the bar on a phone), amounts behind the bar."""
    d = Drawing()
    narrow = width < NARROW_BELOW
    row = 42.0 if narrow else 26.0
    labels = [_label(w, b) for b in shown]
    amounts = [whole(b.saved_tokens) for b in shown]
    insets = [b.depth * INDENT_PX for b in shown]
    widest = max(i + text_width(t, FONT_PX) for i, t in zip(insets, labels, strict=True)) + 12
    left = 0.0 if narrow else min(widest, width * 0.55)
    room = max(text_width(a, FONT_PX) for a in amounts) + 10
    x = Scale(0.0, max(b.saved_tokens for b in shown) or 1.0, left, width - room)
    for i, (b, label, amount, inset) in enumerate(zip(shown, labels, amounts, insets, strict=True)):
        y = row * i + (18 if narrow else 2)
        d.text(inset, y - 4 if narrow else y + 14, fitting(label, (width if narrow else left) - inset - 4))
        end = x(b.saved_tokens)
        d.rect(left, y, max(end - left, 1.5), 18, "s3", f"{label}: {amount}")
        d.text(end + 5, y + 14, amount, "tick")
    return d.out(), int(row * len(shown) + 4)


def _table(w: Words, kept: Sequence[Branch], total: float | None) -> Table:
    rows: list[list[Inline]] = [
        [
            Num(f"{'– ' * b.depth}{whole(b.tokens)}", b.tokens),
            Num(whole(b.prompts), b.prompts),
            Num(whole(b.saved_tokens), b.saved_tokens),
            Num(percent(share := b.saved_tokens / total), share) if total else "-",
            Said(f"…{b.before} → {b.after}", foreign=True),
        ]
        for b in kept
    ]
    return Table(
        name="prefix-tree",
        caption=w("Shared starts"),
        columns=[
            w("shared start, tokens"),
            w("prompts that share it"),
            w("tokens saved"),
            w("of all prompt tokens"),
            w("ends with, and goes on with"),
        ],
        rows=rows,
        numeric=frozenset((0, 1, 2, 3)),
        note=w("A dash is one step further down the tree."),
    )
