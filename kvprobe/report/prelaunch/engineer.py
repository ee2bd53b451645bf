"""Sections 1, 4 to 8 and 12: targets, workload, capacity, waits, prefix cache, flags.

A section that the run cannot fill says which run would.
"""

from __future__ import annotations

from kvprobe.report import run_findings, run_numbers, run_pool
from kvprobe.report.charts_memory import best_hit, lengths_chart
from kvprobe.report.content import Block, Bullets, Facts, Figure, Inline, Num, Para, Pre, Said, Section, Table
from kvprobe.report.prelaunch.budget import fill, said
from kvprobe.report.prelaunch.verdict import judge
from kvprobe.report.prelaunch.view import Prelaunch, amount, capacity, demand
from kvprobe.report.replay_planned import replayed
from kvprobe.summary.units import percent, whole


def verdict(view: Prelaunch) -> Section:
    """1: the sentence again, with every target beside what was measured."""
    w = view.w
    blocks: list[Block] = [Para(Said(judge(view).sentence, strong=True))]
    if isinstance(told := view.get("verdict"), str):
        blocks.append(Facts([(w("the plan says"), said(view, told)), (w("fits"), _fits(view))]))
    gates = run_findings.thresholds(view.run) if view.run is not None and not view.unlike else None
    if gates is not None:
        blocks += gates.blocks
    else:
        blocks.append(
            fill(view, "kvprobe run WORKLOAD --threshold 'ttft.p99 < 2s' --threshold 'tpot.p99 < 200ms'")
        )
    have = capacity(view)
    if have is not None:
        need = demand(view, have.unit)
        rows: list[tuple[str, Inline]] = [(w("capacity"), f"{amount(view, have)} ({have.source})")]
        rows.append(
            (w("demand"), f"{amount(view, need)} ({need.source})" if need is not None else w("not stated"))
        )
        blocks.append(Facts(rows))
    return Section("s1", w("1 Verdict and targets"), blocks)


def _fits(view: Prelaunch) -> Said:
    fits = view.get("fits")
    if fits is True:
        return Said(view.w("yes"), "good")
    return Said(view.w("NO"), "bad") if fits is False else Said(view.w("open"), "warn")


def workload(view: Prelaunch) -> Section:
    """4: lengths, arrival, shared prefixes, digest."""
    w, run = view.w, view.run
    blocks: list[Block] = []
    if view.get("lengths") is not None:
        blocks.append(
            Facts(
                [
                    (w("planned lengths"), str(view.get("lengths.spec") or "")),
                    (w("mean, tokens"), _number(view, "lengths.mean_tokens")),
                ]
            )
        )
    blocks += replayed(w, view.get("replay"))
    if run is None:
        return Section("s4", w("4 Workload"), [*blocks, fill(view, "kvprobe run WORKLOAD.yaml")])
    rows: list[tuple[str, Inline]] = [
        (w("workload"), run.summary.workload or w("not known")),
        (w("digest"), run.summary.workload_hash or w("not known")),
        (w("arrival"), run_numbers.arrival_words(run)),
    ]
    layout = run.summary.layout
    if layout.shared_prefix_tokens is not None:
        rows.append((w("shared prefix, median tokens"), whole(layout.shared_prefix_tokens)))
    if layout.ceiling_as_sent is not None:
        rows.append((w("share of prompt tokens that repeat"), percent(layout.ceiling_as_sent)))
    blocks.append(Facts(rows))
    pairs = [
        (r.prompt_tokens, r.completion_tokens)
        for r in (run.data.records if run.data is not None else [])
        if not r.warmup
        and r.failure is None
        and r.prompt_tokens is not None
        and r.completion_tokens is not None
    ]
    if pairs:
        blocks.append(lengths_chart(w, pairs))
    if (tree := run_pool.shared_tree(run)) is not None:
        blocks.append(tree)
    return Section("s4", w("4 Workload"), blocks)


def _number(view: Prelaunch, path: str) -> Inline:
    value = view.number(path)
    return Num(whole(value), value) if value is not None else view.w("not known")


def curve(view: Prelaunch) -> Section:
    """5: throughput against waits by load."""
    w = view.w
    found = run_numbers.sweep(w, view.sweep())
    if found is not None:
        return Section("s5", w("5 Capacity curve"), found.blocks)
    blocks: list[Block] = []
    if view.measured is not None:
        blocks += run_numbers.load(view.measured).blocks
    return Section("s5", w("5 Capacity curve"), [*blocks, fill(view, "kvprobe run sweep --target URL")])


def ttft(view: Prelaunch) -> Section:
    """6: where the wait for the first token goes."""
    return _of_latency(
        view,
        "s6",
        view.w("6 Time to first token, taken apart"),
        ("ttft-parts", "waits"),
        "kvprobe run shared_prefix --target URL --metrics URL/metrics",
    )


def gaps(view: Prelaunch) -> Section:
    """7: decode while others are prefilled."""
    return _of_latency(
        view,
        "s7",
        view.w("7 Gaps between chunks under mixed load"),
        ("gaps", "latencies"),
        "kvprobe run mixed_lengths --target URL",
    )


def _of_latency(view: Prelaunch, name: str, title: str, figures: tuple[str, ...], command: str) -> Section:
    """The charts of the run's own section on latency, those that this section is about."""
    run = view.run if not view.unlike else None
    kept: list[Block] = []
    if run is not None:
        kept = [b for b in run_numbers.latency(run).blocks if isinstance(b, Figure) and b.name in figures]
    return Section(name, title, kept or [fill(view, command)])


def prefix(view: Prelaunch) -> Section:
    """8: hits expected and measured, match unit, working set against pool."""
    w, run = view.w, view.run if not view.unlike else None
    blocks: list[Block] = []
    block, shared = view.number("pool.block_size"), _shared(view)
    if block and shared:
        mean = view.number("lengths.p50_tokens")
        best = best_hit(shared, int(block), max(0.0, mean - shared)) if mean else None
        text = w("The prefix counts in whole blocks of {b} tokens.", b=whole(block))
        if best is not None:
            text += " " + w(
                "A request of {n} tokens can reuse {h} at best.", n=whole(mean or 0), h=percent(best)
            )
        blocks.append(Para(text))
    if run is not None:
        # The tree stands with the workload (4).
        blocks += [b for b in run_pool.prefix(run).blocks if not _is_tree(b)]
    return Section(
        "s8", w("8 Prefix cache"), blocks or [fill(view, "kvprobe run shared_prefix --target URL")]
    )


def _is_tree(block: Block) -> bool:
    return isinstance(block, Figure) and block.name == "prefix-tree"


def _shared(view: Prelaunch) -> float | None:
    for row in view.items("what_if"):
        if row.get("id") == "shared_prefix":
            digits = "".join(c for c in str(row.get("change", "")).split(" tokens")[0] if c.isdigit())
            return float(digits) if digits else None
    return None


def flags(view: Prelaunch) -> Section:
    """12: flags with the number that each comes from, as shell, YAML and difference."""
    w = view.w
    recommended = view.items("flags.recommended")
    if not recommended:
        note = view.get("flags.note")
        blocks: list[Block] = (
            [Para(said(view, note))]
            if isinstance(note, str)
            else [fill(view, "kvprobe plan --model DIR --gpu NAME --engine vllm --json")]
        )
        return Section("s12", w("12 Flags"), blocks)
    rows: list[list[Inline]] = [
        [str(f.get("name")), str(f.get("value") or w("on")), said(view, str(f.get("why") or ""))]
        for f in recommended
    ]
    blocks = [
        Table("flags", w("Flags and the number each comes from"), [w("flag"), w("value"), w("why")], rows)
    ]
    for name in ("shell", "yaml"):
        if isinstance(text := view.get(f"flags.{name}"), str) and text.strip():
            blocks.append(Pre(text.rstrip()))
    return Section("s12", w("12 Flags"), [*blocks, *_other_flags(view)])


def _other_flags(view: Prelaunch) -> list[Block]:
    """What differs from the flags that run now, and what cannot be told."""
    w = view.w
    blocks: list[Block] = []
    diff = view.items("flags.diff")
    if diff:
        shown: list[list[Inline]] = [
            [
                str(d.get("name")),
                str(d.get("running") or "-"),
                str(d.get("recommended") or w("on")),
                w(str(d.get("change"))),
            ]
            for d in diff
        ]
        blocks.append(
            Table(
                "flags-diff",
                w("Against what runs now"),
                [w("flag"), w("running"), w("recommended"), w("change")],
                shown,
            )
        )
    left = [f"{f.get('name')}: {f.get('why')}" for f in view.items("flags.left_out")]
    if left:
        blocks += [Para(Said(w("Left out"), strong=True)), Bullets([said(view, text) for text in left])]
    return blocks
