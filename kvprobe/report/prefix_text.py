"""The tree of shared prefixes and the ceilings on a terminal, below a diagnosis."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from kvprobe.report.ink import Ink
from kvprobe.summary.units import percent, whole

SHOWN_NODES = 10
TEXT_CHARS = 40


def render_prefixes(analysis: dict[str, Any], console: Console) -> None:
    """`analysis` is the JSON form of a `PrefixAnalysis`."""
    ink = Ink(console)
    about = "about " if analysis["estimated"] else ""
    ink.blank()
    looked_at = f"{whole(analysis['analysed'])} of {whole(analysis['prompts'])}"
    told = f"{looked_at}, {about}{whole(analysis['prompt_tokens'])} tokens"
    ink.rows([("prompts", ink.text(f"{told} ({analysis['tokens_from']})"))])
    _tree(ink, analysis["tree"], about)
    ink.blank()
    _steps(ink, analysis)
    ink.blank()
    _ceilings(ink, analysis["ceilings"])


def _tree(ink: Ink, nodes: list[dict[str, Any]], about: str) -> None:
    if not nodes:
        ink.rows([("tree", ink.text("nothing substantial is shared"))])
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("shared start", no_wrap=True)
    table.add_column("prompts", justify="right")
    table.add_column("saves", justify="right", no_wrap=True)
    table.add_column("and parts after", overflow="fold")
    shown = sorted(range(len(nodes)), key=lambda n: -nodes[n]["saved_tokens"])[:SHOWN_NODES]
    for number in sorted(shown):
        node = nodes[number]
        start = f"{'  ' * min(node['depth'], 6)}{about}{whole(node['tokens'])} tokens"
        ways = " | ".join(repr(text[:TEXT_CHARS])[1:-1] for text in node["after"])
        table.add_row(
            ink.text(start),
            ink.text(whole(node["prompts"])),
            ink.text(f"{whole(node['saved_tokens'])} tokens"),
            ink.text(f"…{repr(node['before'][-TEXT_CHARS:])[1:-1]} → {ways}"),
        )
    ink.console.print(table)
    if len(nodes) > SHOWN_NODES:
        ink.rows([("", ink.text(f"and {len(nodes) - SHOWN_NODES} more (all of them with --json)"))])


def _steps(ink: Ink, analysis: dict[str, Any]) -> None:
    rows = [
        ("reuse" if i == 0 else "", ink.text(f"{percent(s['hit_rate']):>7}  {s['text']}"))
        for i, s in enumerate(analysis["steps"])
    ]
    got = analysis["got"]
    seen = (
        f"{percent(got):>7}  came from the cache" if got is not None else f"      -  {analysis['got_reason']}"
    )
    ink.rows([*rows, ("got", ink.text(seen))])


def _ceilings(ink: Ink, found: list[dict[str, Any]]) -> None:
    for what, label in (("block_tokens", "by block"), ("replicas_in_turn", "by replicas")):
        cells = [f"{c['value']:,}: {percent(c['hit_rate'])}" for c in found if c["what"] == what]
        ink.rows([(label, ink.text("  ".join(cells)))])
