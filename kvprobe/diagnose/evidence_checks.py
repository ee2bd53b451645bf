"""Checks of the evidence: can it be what it seems to be, and is it all there?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.model import Quantity
from kvprobe.diagnose.view import View
from kvprobe.evidence.records import CANCELLED
from kvprobe.evidence.samples import Sample
from kvprobe.summary import activity
from kvprobe.summary.latency import NS
from kvprobe.summary.units import percent, plural, seconds, whole

CONTAMINATION_TOKENS_SHARE = 0.01
CLOCK_TOLERANCE_S = 1.0
ASKED_TOLERANCE = 0.02
BLIND_S, BLIND_STEPS, BLIND_MIN_STEPS = 2.0, 4.0, 4
"""A gap between two readings is told from this length, and this many usual steps, on."""


def no_success(view: View) -> Iterator[Issue]:
    counted = view.summary.requests
    if counted.ok:
        return
    if counted.sent == 0:
        yield Issue("invalid", "no_success", "no request was sent")
        return
    yield Issue("invalid", "no_success", none_ended_well(counted.sent))


def none_ended_well(sent: int) -> str:
    """Why a run without a single success is invalid."""
    return f"none of {plural(sent, 'request')} ended well"


def cache_contaminated(view: View) -> Iterator[Issue]:
    """More hits than these prompts can give: something else warmed the cache.

    The bound holds for any workload; where nothing is shared it is the template's own prefix. The
    tolerance grows with what the bound is worth: prompts are sized by a calibrated tokenizer.
    """
    rate = view.summary.metrics.prefix_hit_rate
    got, ceiling = rate.got_with_warmup if rate.got_with_warmup is not None else rate.got, rate.ceiling
    if got is None:
        return
    if ceiling is None:
        yield Issue(
            "warning", "warning", "what the prompts share was not analysed: a warm cache cannot be told"
        )
        return
    tolerance = CONTAMINATION_TOKENS_SHARE + _sizing_error(view) * ceiling
    if got - ceiling <= tolerance:
        return
    yield Issue(
        "invalid",
        "cache_contaminated",
        f"the cache was warm before the run: {percent(got)} of the prompt tokens came from it, and these "
        f"prompts allow {percent(ceiling)} at most; use a fresh salt (`salt: run`) or empty the "
        "server's cache",
        {"got": Quantity(got, "ratio"), "ceiling": Quantity(ceiling, "ratio")},
    )


def _sizing_error(view: View) -> float:
    """Relative error of prompt sizes: as measured at calibration, else as asked against got shows."""
    calibration = view.fact("calibration")
    stated = calibration.get("check_relative_error") if isinstance(calibration, dict) else None
    seen = view.summary.metrics.prompt_tokens.deviation_median
    known = [abs(x) for x in (stated, seen) if isinstance(x, int | float)]
    return max(known, default=0.05)


def others_on_server(view: View) -> Iterator[Issue]:
    """The server's own counter of prompt tokens against what this run's requests took."""
    rate = view.summary.metrics.prefix_hit_rate
    if rate.others_tokens and rate.own_tokens:
        total = rate.others_tokens + rate.own_tokens
        yield Issue(
            "warning",
            "warning",
            f"the server worked for others too: of {whole(total)} prompt tokens that it counted, "
            f"{whole(rate.own_tokens)} are of this run; latencies were measured beside that load, and KV "
            "use, queue and preemptions are of both",
            {"others": Quantity(rate.others_tokens, "tokens"), "own": Quantity(rate.own_tokens, "tokens")},
        )


def clocks(view: View) -> Iterator[Issue]:
    """The clocks at the start against the clocks at the end."""
    start, end = view.run.environment.get("clock"), view.fact("clock_at_end")
    if not isinstance(start, dict) or not isinstance(end, dict):
        return
    passed = {name: _passed_s(start, end, name) for name in ("monotonic_ns", "utc_ns", "boottime_ns")}
    mono, utc, boot = passed["monotonic_ns"], passed["utc_ns"], passed["boottime_ns"]
    slept = boot - mono if boot is not None and mono is not None else 0.0
    if slept > CLOCK_TOLERANCE_S:
        yield Issue("invalid", "host_slept", f"the host slept for {seconds(slept)} during the run")
    if utc is not None and mono is not None and abs(utc - mono - slept) > CLOCK_TOLERANCE_S:
        yield Issue(
            "invalid",
            "clock_jumped",
            f"the wall clock jumped by {seconds(utc - mono - slept)} during the run (durations are not "
            "affected; times of day, and whatever else follows them on this machine, are)",
        )


def _passed_s(start: dict[str, object], end: dict[str, object], name: str) -> float | None:
    a, b = start.get(name), end.get(name)
    return (b - a) * NS if isinstance(a, int) and isinstance(b, int) else None


def asked_and_got(view: View) -> Iterator[Issue]:
    """The prompts or answers were not the size that was asked for."""
    for name, asked in (
        ("prompt", view.summary.metrics.prompt_tokens),
        ("completion", view.summary.metrics.completion_tokens),
    ):
        off = asked.deviation_median
        if off is not None and abs(off) > ASKED_TOLERANCE:
            yield Issue(
                "warning",
                "warning",
                f"{name} tokens differ from what was asked: median {whole(asked.got_median or 0)} against "
                f"{whole(asked.asked_median or 0)} ({percent(off)})",
            )


def unverified(view: View) -> Iterator[Issue]:
    """Whoever stood between could have answered."""
    target = view.fact("target")
    url = target.get("base_url") if isinstance(target, dict) else None
    if isinstance(target, dict) and target.get("insecure") is True and str(url).startswith("https"):
        yield Issue("warning", "warning", "the target's TLS certificate was not verified (--insecure)")


def usage_missing(view: View) -> Iterator[Issue]:
    missing = sum(
        1
        for r in view.ok
        if r.finish_reason != CANCELLED and (r.completion_tokens is None or r.prompt_tokens is None)
    )
    if missing:
        yield Issue(
            "warning",
            "warning",
            f"the server sent no usage for {missing} of {plural(len(view.ok), 'request')}: "
            "token counts and TPOT leave these out",
        )


def samples_missing(view: View) -> Iterator[Issue]:
    """Gaps in what the sampler saw."""
    scrapes = [s for s in view.run.samples if s.metric == "scrape.ok"]
    failed = sum(1 for s in scrapes if s.value != 1.0)
    if view.facts("metrics_unavailable"):
        yield Issue("warning", "warning", f"no server metrics: {view.facts('metrics_unavailable')[-1].value}")
    elif not scrapes:
        yield Issue("warning", "warning", "no server metrics were read")
    else:
        yield from _blind(scrapes)
    if scrapes and failed and not view.facts("metrics_unavailable"):
        yield Issue("warning", "warning", f"{failed} of {plural(len(scrapes), 'metrics reading')} failed")
    if view.run.bad_lines:
        yield Issue(
            "warning", "warning", f"{plural(view.run.bad_lines, 'damaged line')} of the records skipped"
        )


def _blind(scrapes: list[Sample]) -> Iterator[Issue]:
    """A long time without a reading, against the usual distance of two: the sampler stood still."""
    times = sorted(s.t_ns for s in scrapes)
    steps = [(b - a) * NS for a, b in pairwise(times)]
    if len(steps) < BLIND_MIN_STEPS:
        return
    if max(steps) > max(BLIND_S, BLIND_STEPS * median(steps)):
        yield Issue(
            "warning",
            "warning",
            f"nothing was sampled for {seconds(max(steps))} (usually every {seconds(median(steps))}): peaks "
            "of memory, KV use and queue in that time are not known",
        )


def cut_short(view: View) -> Iterator[Issue]:
    """The run did not end as planned."""
    if view.run.status == "complete":
        return
    reason = view.summary.window.finish_detail or view.summary.window.finish_reason
    lost = view.summary.requests.unfinished
    told = f": {reason}" if reason else ""
    inflight = f"; {plural(lost, 'request')} in flight were lost" if lost else ""
    yield Issue("warning", "warning", f"the run is {view.run.status}{told}{inflight}")


def server_restarted(view: View) -> Iterator[Issue]:
    for metric in ("engine.generation_tokens_total", "engine.prompt_tokens_total", activity.PREFIX_QUERIES):
        grown = view.increase(metric)
        if grown is not None and grown.resets:
            yield Issue(
                "warning",
                "warning",
                f"the server's counters started again {grown.resets} time(s): it restarted",
            )
            return
