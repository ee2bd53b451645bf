"""A quality comparison on a terminal: the verdict, right and wrong by kind, how far the texts are apart."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table

from kvprobe.quality.divergence import Divergence
from kvprobe.quality.model import Pass, Quality, Server, Test
from kvprobe.report.ink import Ink
from kvprobe.summary.units import percent, whole

_STYLES = {"loss": "bold red", "no_loss_shown": "bold green", "n_too_small": "bold yellow"}


def render_quality(found: Quality, console: Console) -> None:
    """The whole page."""
    ink = Ink(console)
    verdict = found.verdict.replace("_", " ")
    if found.summary.startswith("not judged"):
        verdict = "not judged"
    reasons = found.diagnosis.validity.reasons if found.diagnosis.validity is not None else []
    if reasons:
        ink.line("INVALID: do not quote these numbers", "bold red")
    if found.status == "partial":
        ink.line("PARTIAL: stopped before all questions were asked", "bold yellow")
    rows: list[tuple[str, RenderableType]] = [
        ("quality", ink.join((verdict, _STYLES[found.verdict]), (_told(found), ""))),
        ("cause", ink.text(found.diagnosis.primary)),
        ("baseline", ink.text(_server(found.baseline))),
        ("candidate", ink.text(_server(found.candidate))),
    ]
    ink.rows(rows)
    for one in found.passes:
        ink.blank()
        ink.line("with the pool held nearly full" if one.pressure else "questions", "bold")
        console.print(_table(ink, one))
        ink.rows(_below(ink, one))
    ink.blank()
    ink.rows([("texts", ink.text(_apart(found.passes[0].divergence, "candidate against baseline")))])
    for one in found.passes[1:]:
        ink.rows([("", ink.text(_apart(one.divergence, "the same with the pool held nearly full")))])
    ink.rows([("", ink.text(_apart(found.noise, "baseline against itself")))])
    ink.rows([("note" if i == 0 else "", ink.text(w)) for i, w in enumerate(found.warnings)])


def _told(found: Quality) -> str:
    """The summary without the verdict that stands before it."""
    said = found.summary
    for verdict in ("n too small: ", "no loss shown: ", "not judged: "):
        said = said.removeprefix(verdict)
    return f": {said}"


def _server(server: Server) -> str:
    engine = " ".join(w for w in (server.engine, server.engine_version) if w) or "an unknown engine"
    cost = f", {whole(server.kv_bytes_per_token)} B a token" if server.kv_bytes_per_token else ""
    return f"{server.url} ({engine}, model {server.model}, KV {server.kv_dtype or 'format not told'}{cost})"


def _table(ink: Ink, one: Pass) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("kind", no_wrap=True)
    for heading in ("n", "baseline", "candidate", "only base", "only cand", "difference [95 %]", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for test in one.tests:
        table.add_row(*(ink.text(cell) for cell in _cells(test)))
    return table


def _cells(test: Test) -> list[str]:
    p = test.p if test.p_adjusted is None else test.p_adjusted
    ci = test.difference_ci
    interval = f" [{100 * ci[0]:+.0f}, {100 * ci[1]:+.0f}]" if ci is not None else ""
    return [
        test.kind,
        whole(test.n),
        whole(test.right_baseline),
        whole(test.right_candidate),
        whole(test.only_baseline),
        whole(test.only_candidate),
        f"{100 * test.difference:+.0f} points{interval}" if test.difference is not None else "-",
        f"{p:.2g}" if p is not None else "-",
    ]


def _below(ink: Ink, one: Pass) -> list[tuple[str, RenderableType]]:
    rows: list[tuple[str, RenderableType]] = []
    for test in one.tests:
        if test.by_depth:
            told = "; ".join(f"at {d}: {a} and {b} of {n}" for d, (n, a, b) in test.by_depth.items())
            rows.append((f"  {test.kind}", ink.text(f"baseline and candidate right {told}")))
    if one.json_valid is not None:
        rows.append(
            (
                "  json",
                ink.text(f"valid objects: baseline {one.json_valid[0]}, candidate {one.json_valid[1]}"),
            )
        )
    if any(one.unanswered):
        rows.append(
            ("  unanswered", ink.text(f"baseline {one.unanswered[0]}, candidate {one.unanswered[1]}"))
        )
    for name, seen in one.kv_usage.items():
        known = [percent(v) for v in seen.values() if v is not None]
        rows.append(
            (f"  {name}", ink.text(f"pool use, lowest, median, highest: {', '.join(known) or 'not known'}"))
        )
    return rows


def _apart(found: Divergence, what: str) -> str:
    if found.identical is None or found.first_same is None:
        return f"{what}: nothing to compare"
    unit = found.unit.removesuffix("s")
    told = f"{what}: {percent(found.identical)} the same to the end, {percent(found.first_same)}"
    told += f" in the first {unit}"
    if found.logprob_difference is None:
        return f"{told}; no log probabilities ({whole(found.n)} answers)"
    lo, hi = found.logprob_difference_ci or (None, None)
    interval = f" [{lo:.4f}, {hi:.4f}]" if lo is not None and hi is not None else ""
    return (
        f"{told}; log probabilities {found.logprob_difference:.4f} nats apart{interval} "
        f"({whole(found.logprob_tokens)} tokens of {whole(found.n)} answers)"
    )
