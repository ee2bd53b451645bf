"""A replay as a page: what fits, how long it waits, who held the cache, the sweeps."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.simulate.holders import Exhaustion
from kvprobe.plan.simulate.outcome import Spread
from kvprobe.plan.simulate.replay import Replay, Sweep, SweepRow
from kvprobe.report.content import (
    Block,
    Bullets,
    Card,
    Facts,
    Inline,
    Num,
    Para,
    Report,
    Said,
    Section,
    Table,
    Tile,
    Tiles,
)
from kvprobe.report.replay_chart import time_line_chart
from kvprobe.report.words import Language, Words, words
from kvprobe.summary.units import percent, seconds, size, whole

MOMENTS_SHOWN = 8
SHORT = 0.01
_NAMES = (("queue_s", "queue"), ("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "end to end"))


def read_replay(path: Path) -> Replay:
    """The document of `kvprobe replay --json`. Raises UsageError for a file that is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Replay)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        why = f"{path} is no answer of `kvprobe replay --json`: {str(error)[:160]}"
        fix = "write one with `kvprobe replay TRACE ... --json > FILE`"
        raise UsageError(Problem("bad_replay", why, fix, path=str(path))) from error


def replay_report(found: Replay, lang: Language = "en") -> Report:
    """The whole page; a second trace has sections of its own."""
    w = words(lang)
    sections = replay_sections(w, found)
    if found.beside is not None:
        sections += replay_sections(w, found.beside, "beside")
    where = " · ".join((Path(found.trace.path).name, found.settings.engine, found.settings.allocator))
    return Report(
        lang=lang,
        title=w("{name}: replay of a trace, simulated", name=Path(found.trace.path).name),
        subtitle=where,
        badges=_badges(w, found),
        first=_first(w, found),
        sections=sections,
        footer=w("Nothing here was measured: a trace went through a model of a server."),
    )


def _badges(w: Words, found: Replay) -> list[Said]:
    r = found.requests
    lost = r.refused + r.failed
    badges = [Said(w("simulated, not measured"), "warn")]
    badges.append(
        Said(w("{n} of {all} requests not served", n=whole(lost), all=whole(r.total)), "bad")
        if lost
        else Said(w("every request served"), "good")
    )
    return badges


def _first(w: Words, found: Replay) -> list[Block]:
    c, p, q, x = found.concurrency, found.pool, found.preemptions, found.prefix
    tiles = [
        Tile(
            w("at once, peak"),
            whole(c.peak),
            "",
            w("{mean} on average, as simulated", mean=f"{c.mean:.1f}"),
        ),
        Tile(w("pool in use, peak"), percent(p.peak_ratio), "", w("{n} blocks", n=whole(p.usable_blocks))),
        Tile(w("preemptions"), whole(q.events), "", percent(q.share), "bad" if q.share > SHORT else ""),
        Tile(w("queue, peak"), whole(c.waiting_peak), "", ""),
    ]
    if x.hit_rate is not None:
        tiles.append(Tile(w("prefix hits"), percent(x.hit_rate), "", ""))
    source = Para(
        w("Step time: {source}. How many run at once follows from it.", source=found.step_time.source)
    )
    return [Tiles(tiles), source]


def replay_sections(w: Words, found: Replay, prefix: str = "replay") -> list[Section]:
    """What one trace did; also below a run's own report."""
    ran_out = [_answer(w, found), *time_line_chart(w, found)]
    sections = [
        Section(
            f"{prefix}-answer",
            w("Replay: {name}", name=Path(found.trace.path).name),
            [*ran_out, _waits(w, found)],
        ),
        Section(f"{prefix}-holders", w("Who held the cache"), _holders(w, found)),
        Section(f"{prefix}-sweeps", w("Sweeps and the smallest pool"), _sweeps(w, found)),
        Section(f"{prefix}-origin", w("What was assumed"), _origin(w, found)),
    ]
    return [section for section in sections if section.blocks]


def _answer(w: Words, found: Replay) -> Block:
    r, p, q = found.requests, found.pool, found.preemptions
    memory = f" = {size(p.bytes)}" if p.bytes is not None else ""
    rows: list[tuple[str, Inline]] = [
        (w("requests"), f"{whole(r.ok)} / {whole(r.total)}"),
        (w("refused as too long"), Num(whole(r.refused), r.refused, "bad" if r.refused else "")),
        (w("failed for lack of room"), Num(whole(r.failed), r.failed, "bad" if r.failed else "")),
        (w("pool, tokens"), f"{whole(p.tokens)}{memory}"),
        (w("preempted requests"), Num(f"{whole(q.requests)} ({percent(q.share)})", q.requests)),
        (w("tokens computed again"), Num(whole(q.recomputed_tokens), q.recomputed_tokens)),
    ]
    if p.physical_over_logical is not None:
        rows.append(
            (
                w("slots held for each token in them"),
                Num(f"{p.physical_over_logical:.3f}", p.physical_over_logical),
            )
        )
    hits = found.prefix
    rate = hits.why_null if hits.hit_rate is None else percent(hits.hit_rate)
    rows.append((w("prefix hits"), Said(rate or "", foreign=True)))
    return Facts(rows)


def _waits(w: Words, found: Replay) -> Block:
    def cells(spread: Spread | None) -> list[Inline]:
        if spread is None:
            return ["-"] * 5
        values = (spread.mean, spread.p50, spread.p95, spread.p99, spread.max)
        return [Num(seconds(value), value) for value in values]

    return Table(
        name="replay-latency",
        caption=w("Waits, as simulated"),
        columns=["", w("mean"), "p50", "p95", "p99", w("max")],
        rows=[[label, *cells(found.metrics.get(name))] for name, label in _NAMES],
        numeric=frozenset(range(1, 6)),
    )


def _holders(w: Words, found: Replay) -> list[Block]:
    blocks: list[Block] = []
    e, c = found.exhaustions, found.concentration
    if not e.count:
        blocks.append(Para(Said(w("The pool never ran out: no request was refused room."), "good")))
    else:
        told = w("Room was refused {n} times, first at {at}.", n=whole(e.count), at=seconds(e.first_s or 0.0))
        blocks.append(Para(Said(told, "warn", strong=True)))
        worst = sorted(e.moments, key=lambda m: -max((h.share for h in m.holders), default=0.0))
        blocks += [_moment(w, moment, n) for n, moment in enumerate(worst[:MOMENTS_SHOWN])]
    if c is not None:
        told = w(
            "{part} of requests ({n}) hold {share} of all byte-seconds.",
            part=percent(c.requests_share),
            n=whole(c.requests),
            share=percent(c.byte_seconds_share),
        )
        blocks.append(Para(Said(told, strong=True)))
        rows: list[list[Inline]] = [
            [
                Num(whole(h.line), h.line),
                h.session or "-",
                Num(whole(h.in_tokens), h.in_tokens),
                Num(whole(h.out_tokens), h.out_tokens),
                Num(percent(h.share), h.share),
            ]
            for h in c.heaviest
        ]
        columns = [w("line"), w("session"), w("tokens in"), w("tokens out"), w("share of byte-seconds")]
        numeric = frozenset((0, 2, 3, 4))
        blocks.append(Table("replay-heaviest", w("The heaviest requests"), columns, rows, numeric))
    return blocks


def _moment(w: Words, moment: Exhaustion, number: int) -> Block:
    who = w("a running request") if moment.kind == "preemption" else w("a waiting request")
    rows: list[list[Inline]] = [
        [
            Num(whole(h.line), h.line),
            h.session or "-",
            Num(whole(h.tokens), h.tokens),
            Num(whole(h.blocks), h.blocks),
            Num(percent(h.share), h.share),
            Num(seconds(h.age_s), h.age_s),
        ]
        for h in moment.holders
    ]
    table = Table(
        name=f"replay-holders-{number + 1}",
        caption=w("Who held most"),
        columns=[w("line"), w("session"), w("tokens"), w("blocks"), w("share of the pool"), w("age")],
        rows=rows,
        numeric=frozenset((0, 2, 3, 4, 5)),
    )
    title = w(
        "At {at}: {who} wanted {n} blocks, {left} were left, {running} ran",
        at=seconds(moment.t_s),
        who=who,
        n=whole(moment.wanted_blocks),
        left=whole(moment.available_blocks),
        running=whole(moment.running),
    )
    return Card(title, [table], "warn")


def _sweeps(w: Words, found: Replay) -> list[Block]:
    blocks: list[Block] = [block for sweep in found.sweeps for block in _sweep(w, sweep)]
    least = found.smallest
    if least is not None:
        pool = w("none") if least.usable_blocks is None else w("{n} blocks", n=whole(least.usable_blocks))
        if least.bytes is not None:
            pool += f" = {size(least.bytes)}"
        blocks.append(
            Facts(
                [
                    (w("smallest pool for {limit}", limit=least.limit), pool),
                    ("", Said(least.why, foreign=True)),
                ]
            )
        )
    return blocks


def _sweep(w: Words, sweep: Sweep) -> list[Block]:
    columns = [
        sweep.name,
        w("blocks"),
        w("refused"),
        w("at once, mean"),
        w("prefix hits"),
        w("preemptions"),
        w("queue p95"),
        "TTFT p95",
        "e2e p95",
    ]
    table = Table(
        name=f"replay-sweep-{sweep.name}",
        caption=w("Sweep of {name}", name=sweep.name),
        columns=columns,
        rows=[_sweep_row(row, knee=row.value == sweep.knee) for row in sweep.rows],
        numeric=frozenset(range(1, len(columns))),
    )
    return [table, Para(Said(f"{sweep.knee or '-'}: {sweep.why}", foreign=True))]


def _sweep_row(row: SweepRow, *, knee: bool) -> list[Inline]:
    def time(value: float | None) -> Inline:
        return Num("-" if value is None else seconds(value), value)

    return [
        Said(row.value, "good" if knee else "", strong=knee),
        Num(whole(row.usable_blocks), row.usable_blocks),
        Num(whole(row.refused), row.refused),
        Num(f"{row.running_mean:.1f}", row.running_mean),
        Num("-" if row.hit_rate is None else percent(row.hit_rate), row.hit_rate),
        Num(whole(row.preemptions), row.preemptions),
        *(time(value) for value in (row.queue_p95_s, row.ttft_p95_s, row.e2e_p95_s)),
    ]


def _origin(w: Words, found: Replay) -> list[Block]:
    s, t = found.settings, found.step_time
    rows: list[tuple[str, Inline]] = [
        (w("trace"), f"{found.trace.path} ({found.trace.format})"),
        (w("step time"), t.source),
        ("max-num-seqs", whole(s.max_num_seqs)),
        ("max-num-batched-tokens", whole(s.max_num_batched_tokens)),
        ("max-model-len", whole(s.max_model_len) if s.max_model_len else "-"),
        (w("preemption"), s.preemption),
    ]
    notes: list[Inline] = [Said(note, "dim", foreign=True) for note in (*t.notes, *found.assumptions)]
    dropped = [Said(f"{count:,} x {why}", foreign=True) for why, count in found.trace.dropped.items()]
    return [Facts(rows), *([Bullets([*dropped, *notes])] if notes or dropped else [])]
