"""A plan on a terminal: verdict first, then the budget, the pool, how many at once, flags, warnings."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.plan.document import PlanDocument
from kvprobe.report import plan_text as words
from kvprobe.report.ink import Ink
from kvprobe.report.replay_planned import replay_lines
from kvprobe.summary.units import percent, size, whole

BAR_CELLS = 18
ROOMY_COLUMNS = 96


def render_plan(plan: PlanDocument, console: Console) -> None:
    """Print the whole page; several models are compared first, then shown one by one."""
    ink = Ink(console)
    if plan.models:
        _side_by_side(ink, plan.models)
        for each in plan.models:
            ink.blank()
            _one(ink, each)
        return
    _one(ink, plan)


def render_plan_text(plan: PlanDocument, *, width: int) -> str:
    """The same as plain text of `width` columns, without escape codes or padding."""
    page = io.StringIO()
    plain = Console(file=page, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    render_plan(plan, plain)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _one(ink: Ink, plan: PlanDocument) -> None:
    style = {True: "bold green", False: "bold red", None: "bold yellow"}[plan.fits]
    ink.rows(
        [("kvprobe plan", ink.text(words.headline(plan), "bold")), ("verdict", ink.text(plan.verdict, style))]
    )
    ink.blank()
    _budget(ink, plan)
    ink.rows(_pool_rows(ink, plan))
    ink.rows(_at_once_rows(ink, plan))
    _warnings(ink, plan)
    _flags(ink, plan)
    _what_if(ink, plan)
    _ladder(ink, plan)
    _assumptions(ink, plan)


def _budget(ink: Ink, plan: PlanDocument) -> None:
    rows = list(words.budget_rows(plan.budget, plan.reasons))
    if not rows:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(width=11, no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    missing: dict[str, str] = {}
    for number, (label, amount, share, source) in enumerate(rows):
        if amount == "not known":  # a sentence has no room in the last column
            missing.setdefault(source, label.lstrip("-= "))
            source = ""
        kind = "bold" if label.startswith("=") else ""
        table.add_row(
            ink.text("budget" if number == 0 else "", "bold"),
            ink.text(label, kind),
            ink.text(amount, kind),
            _bar(ink, share, "green" if label.startswith("=") else ""),
            ink.text(source, "dim"),
        )
    ink.console.print(table)
    ink.rows([("", ink.text(f"{label}: {reason}", "yellow")) for reason, label in missing.items() if reason])


def _bar(ink: Ink, share: float, style: str) -> Text:
    cells = round(min(1.0, share) * BAR_CELLS)
    full = "█" if ink.unicode else "#"
    return Text(full * max(cells, 1 if share > 0 else 0) + " " * (BAR_CELLS - cells), style=style or "blue")


def _pool_rows(ink: Ink, plan: PlanDocument) -> list[tuple[str, RenderableType]]:
    rows: list[tuple[str, RenderableType]] = [("a token", ink.text(words.token_line(plan)))]
    rows += [("", ink.text(line, "dim")) for line in words.part_lines(plan)]
    kv = plan.kv
    if kv.tokens is not None and kv.bytes_at_tokens is not None:
        amount = f"{size(kv.bytes_at_tokens)} ({kv.bytes_at_tokens:,} B = {kv.bytes_at_tokens / 1e9:,.1f} GB)"
        rows.append((f"{kv.tokens:,} tok", ink.text(amount)))
    lines = list(words.pool_lines(plan)) or [plan.reasons.get("pool", "not known")]
    rows += [("pool" if i == 0 else "", ink.text(line)) for i, line in enumerate(lines)]
    return rows


def _at_once_rows(ink: Ink, plan: PlanDocument) -> list[tuple[str, RenderableType]]:
    held = plan.concurrency
    lengths = words.length_rows(plan)
    rows: list[tuple[str, RenderableType]] = []
    if lengths:
        told = "; ".join(f"{name} ({tokens} tokens): {n}" for name, tokens, n in lengths)
        rows.append(("at once", ink.text(told)))
    if held.distribution is not None:
        rows.append(("safe", ink.text(words.safe_line(held.distribution), "bold")))
    if held.binds:
        capped = held.cap is not None and held.cap_name != held.binds
        cap = f"; at most {whole(held.cap or 0)} by {held.cap_name}" if capped else ""
        rows.append(("binds", ink.text(f"{held.binds}{cap}")))
    rows += [("replay" if n == 0 else "", ink.text(line)) for n, line in enumerate(replay_lines(plan.replay))]
    if held.shortfall is not None:
        short = held.shortfall
        blocks = f", {whole(short.blocks)} blocks" if short.blocks is not None else ""
        rows.append(
            (
                "lacks",
                ink.text(
                    f"{size(short.bytes)}{blocks} for one request of {whole(short.tokens)} tokens", "red"
                ),
            )
        )
    if (waste := _waste(plan)) is not None:
        rows.append(("waste", ink.text(waste)))
    if (cost := words.cost_line(plan)) is not None:
        rows.append(("cost", ink.text(cost)))
    return rows


def _waste(plan: PlanDocument) -> str | None:
    waste = plan.waste
    if not waste.sequences:
        return None
    parts = []
    if waste.tail_bound_tokens is not None:
        expected = (
            f", {whole(waste.tail_expected_tokens)} expected"
            if waste.tail_expected_tokens is not None
            else ""
        )
        parts.append(
            f"tails of {whole(waste.sequences or 0)} requests at most "
            f"{whole(waste.tail_bound_tokens)} tokens{expected}"
        )
    for name, value in (
        ("padding", waste.padding),
        ("null block", waste.null_block),
        ("block tables", waste.block_table_bytes),
    ):
        if value:
            parts.append(f"{name} {size(value)}")
    if waste.reserved:
        parts.append(f"held beyond the tokens {size(waste.reserved)}")
    return "; ".join(parts) or None


def _warnings(ink: Ink, plan: PlanDocument) -> None:
    for number, warning in enumerate(plan.warnings):
        text, fix = words.warning_line(warning.text, warning.fix)
        ink.rows([("warning" if number == 0 else "", ink.join((text, "yellow"), (fix, "")))])


def _flags(ink: Ink, plan: PlanDocument) -> None:
    flags = plan.flags
    ink.blank()
    if flags.note is not None:
        ink.rows([("flags", ink.text(flags.note, "dim"))])
        return
    lines = flags.shell.splitlines()
    ink.rows([("flags" if i == 0 else "", ink.text(line, "bold")) for i, line in enumerate(lines)])
    ink.rows([("  from", ink.join((f.name, "bold"), (f": {f.why}", ""))) for f in flags.recommended])
    ink.rows([("  left out", ink.text(f"{f.name}: {f.why}", "dim")) for f in flags.left_out])
    changes = [row for row in flags.diff if row.change != "same"]
    ink.rows(
        [
            (
                "  change",
                ink.text(f"{c.name}: {c.running or '(not set)'} -> {c.recommended or 'on'}", "yellow"),
            )
            for c in changes
        ]
    )
    if flags.diff and not changes:
        ink.rows([("  change", ink.text("nothing: the running flags are these", "green"))])


def _what_if(ink: Ink, plan: PlanDocument) -> None:
    rows = plan.what_if
    if not any(row.pool_tokens or row.max is not None for row in rows):
        return
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("what if", overflow="fold", ratio=1)
    for name in ("pool tokens", "p50", "p95", "max", "safe"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.reason is not None:
            table.add_row(ink.join((row.change, ""), (f": {row.reason}", "dim")))
            continue
        cells = words.what_if_cells(row)
        note = f" ({row.note})" if row.note and ink.console.width >= ROOMY_COLUMNS else ""
        table.add_row(ink.join((cells[0], ""), (note, "dim")), *(ink.text(cell) for cell in cells[1:]))
    ink.blank()
    ink.console.print(table)


def _ladder(ink: Ink, plan: PlanDocument) -> None:
    if not plan.ladder:
        return
    ink.blank()
    rows: list[tuple[str, RenderableType]] = []
    for number, rung in enumerate(plan.ladder):
        held = f", {whole(rung.max_num_seqs)} at once" if rung.max_num_seqs is not None else ""
        head = f"{rung.setting}: {size(rung.kv_bytes)} of cache{held}"
        rows.append(("climb" if number == 0 else "", ink.join((head, "bold"), (f"; then {rung.check}", ""))))
    ink.rows(rows)


def _assumptions(ink: Ink, plan: PlanDocument) -> None:
    if not plan.assumptions:
        return
    ink.blank()
    ink.rows(
        [("assumed" if i == 0 else "", ink.text(line, "dim")) for i, line in enumerate(plan.assumptions)]
    )


def _side_by_side(ink: Ink, plans: Sequence[PlanDocument]) -> None:
    """Several models in one table; of two alike in size, the one with fewer KV heads holds more."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("model", overflow="fold", ratio=1)
    for name in ("a token", "weights", "KV cache", "tokens", "p95", "safe"):
        table.add_column(name, justify="right", no_wrap=True)
    for plan in plans:
        unit = words.unit_of(plan.budget)
        held, spread = plan.concurrency, plan.concurrency.distribution
        table.add_row(
            ink.text(plan.model.name),
            ink.text(size(plan.kv.bytes_per_token_per_gpu)),
            ink.text(words.amount(plan.budget.weights, unit)),
            ink.text(words.amount(plan.budget.kv, unit)),
            ink.text(words.count(plan.pool.tokens, plan.pool.tokens_range)),
            ink.text(words.count(held.p95, held.p95_range)),
            ink.text("-" if spread is None else whole(spread.max_num_seqs or 0)),
        )
    ink.console.print(table)
    held_by = [(p.pool.tokens or (p.pool.tokens_range or (0, 0))[0], p.model.name) for p in plans]
    best, name = max(held_by)
    others = sorted(n for n, _ in held_by)[:-1]
    if best and others and others[-1] and best > others[-1]:
        ink.line(f"{name} holds most: {percent(best / others[-1] - 1)} more tokens than the next")
