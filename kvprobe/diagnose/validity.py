"""May the numbers of this run be trusted? Each check is a small function of the evidence.

An `invalid` issue means that the run must not be quoted (exit 4); a `warning` says what a reader has
to know. The thresholds and their reasons stand in docs/measuring.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kvprobe.diagnose import arrivals, steadiness
from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.model import Quantity, Validity
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.latency import NS
from kvprobe.summary.units import percent, plural, seconds, whole

LATE_S = 0.010
LATE_SHARE = 0.05
LAGS_PER_WINDOW = 12
"""Windows of 250 ms, a lag about every 20 ms (kvprobe.load.health)."""
BATCHED_GAP_SHARE = 0.3
SHARED_CHUNKS_SHARE = 0.10
CPU_FULL_RATIO = 0.95
CPU_FULL_SHARE = 0.10
CONTAMINATION_TOKENS_SHARE = 0.01
STOOD_STILL_S = 2.0
CLOCK_TOLERANCE_S = 1.0
ASKED_TOLERANCE = 0.02


Check = Callable[[View], Iterator[Issue]]


def late_client(view: View) -> Iterator[Issue]:
    """Event-loop lag: every stamp of the client may be that late."""
    lag = loop_lag_p99_s(view)
    if lag is None or lag <= LATE_S:
        return
    metrics = view.summary.metrics
    for name, reported in (("TTFT", metrics.ttft_s.p50), ("inter-chunk gap", metrics.gap_s.p50)):
        if reported is not None and lag > LATE_SHARE * reported:
            yield Issue(
                "invalid",
                "late_client",
                f"the client was late: its event loop woke {seconds(lag)} late at p99, "
                f"{percent(lag / max(reported, 1e-9))} of the median {name} ({seconds(reported)})",
                {"loop_lag_p99": Quantity(lag, "s"), "reported": Quantity(reported, "s")},
            )
            return


def loop_lag_p99_s(view: View) -> float | None:
    """p99 of the client's event-loop lag over the load, estimated from the worst lag of each window.

    A window holds about `LAGS_PER_WINDOW` lags. The largest of k independent lags stays below x
    with probability F(x)**k, so the p99 of the lags is the 0.99**k quantile of the largest ones.
    """
    points = view.load_series("client.loop_lag_s")
    if not points:
        return None
    return float(np.quantile([v for _, v in points], 0.99**LAGS_PER_WINDOW))


def late_dispatch(view: View) -> Iterator[Issue]:
    """Requests that left later than the schedule wanted: capped by its own users, or simply late."""
    delay = view.summary.metrics.dispatch_delay_s
    p99 = delay.p99 if delay.p99 is not None else delay.max
    ttft = view.summary.metrics.ttft_s.p50
    if p99 is None or p99 <= LATE_S:
        return
    label = "p99" if delay.p99 is not None else "worst"
    facts = {"dispatch_delay": Quantity(p99, "s"), "requests": Quantity(delay.n, "count")}
    if arrivals.late_because_full(view, LATE_S):
        yield Issue(
            "warning",
            "warning",
            f"client-capped: requests left {seconds(p99)} late ({label}) because all allowed requests were "
            "in flight; latency from the schedule is the honest number, latency from sent is not",
            facts,
        )
    elif ttft is None or p99 > LATE_SHARE * ttft:
        yield Issue(
            "invalid",
            "late_client",
            f"the client was late: requests left {seconds(p99)} after the schedule wanted them ({label}), "
            "with room to send them",
            facts,
        )


def batched_reads(view: View) -> Iterator[Issue]:
    """Gaps near zero between long ones, and the client itself took several chunks from one receive."""
    gap = view.summary.metrics.gap_s
    if gap.p50 is None or gap.mean is None or gap.p50 >= BATCHED_GAP_SHARE * gap.mean:
        return
    chunks = sum(r.content_chunks for r in view.ok)
    shared = sum(r.shared_receive_chunks for r in view.ok)
    lag = loop_lag_p99_s(view)
    share = shared / chunks if chunks else 0.0
    if share < SHARED_CHUNKS_SHARE and (lag is None or lag <= LATE_S):
        return
    yield Issue(
        "invalid",
        "batched_reads",
        f"the client read in batches: the median gap is {seconds(gap.p50)}, the mean {seconds(gap.mean)}, "
        f"and {percent(share)} of the chunks came in one receive together with an earlier one",
        {
            "gap_p50": Quantity(gap.p50, "s"),
            "gap_mean": Quantity(gap.mean, "s"),
            "shared_receive_chunks": Quantity(share, "ratio"),
        },
    )


def client_cpu(view: View) -> Iterator[Issue]:
    """A load worker is one thread: at a full core it sends and stamps late."""
    points = view.load_series("client.cpu_ratio")
    full = sum(1 for _, v in points if v >= CPU_FULL_RATIO)
    if len(points) < 4 or full <= CPU_FULL_SHARE * len(points):
        return
    yield Issue(
        "invalid",
        "client_cpu",
        f"the client ran out of CPU: its core was full in {percent(full / len(points))} of the readings",
        {"full": Quantity(full, "count"), "readings": Quantity(len(points), "count")},
    )


def client_descriptors(view: View) -> Iterator[Issue]:
    """The client could not open a connection: that is its own limit, never the server's."""
    failed = view.summary.requests.by_failure.get("client_fd", 0)
    if failed:
        limit = activity.largest(view.run.samples, "client.fd_limit")
        told = f" (its limit is {whole(limit)})" if limit is not None else ""
        yield Issue(
            "invalid",
            "client_descriptors",
            f"the client ran out of file descriptors{told}: {plural(failed, 'request')} could not be sent",
            {"client_fd": Quantity(failed, "count")},
        )


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


def client_stood_still(view: View) -> Iterator[Issue]:
    """The client did not run at all for a while (stopped, suspended, starved)."""
    points = view.load_series("client.loop_lag_s")
    worst = max((v for _, v in points), default=0.0)
    if worst >= STOOD_STILL_S:
        yield Issue(
            "invalid",
            "client_stood_still",
            f"the client stood still for {seconds(worst)} (stopped or suspended): "
            "nothing was measured meanwhile",
            {"stood_still": Quantity(worst, "s")},
        )


def no_success(view: View) -> Iterator[Issue]:
    counted = view.summary.requests
    if counted.ok:
        return
    if counted.sent == 0:
        yield Issue("invalid", "no_success", "no request was sent")
        return
    yield Issue("invalid", "no_success", f"none of {plural(counted.sent, 'request')} ended well")


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


def usage_missing(view: View) -> Iterator[Issue]:
    missing = sum(1 for r in view.ok if r.completion_tokens is None or r.prompt_tokens is None)
    if missing:
        yield Issue(
            "warning",
            "warning",
            f"the server sent no usage for {missing} of {plural(len(view.ok), 'request')}: "
            "token counts and TPOT leave these out",
        )


def shared_cores(view: View) -> Iterator[Issue]:
    target = view.fact("target")
    bundled = isinstance(target, dict) and target.get("bundled") is True
    if bundled or any(s.metric == "server.cpu_s_total" for s in view.run.samples):
        cores = view.run.environment.get("cpu_usable") or view.run.environment.get("cpu_count")
        told = f"this machine's {cores} cores" if isinstance(cores, int) else "the cores of this machine"
        yield Issue("warning", "warning", f"client and server share {told}: each takes time from the other")


def samples_missing(view: View) -> Iterator[Issue]:
    """Gaps in what the sampler saw."""
    scrapes = [s for s in view.run.samples if s.metric == "scrape.ok"]
    failed = sum(1 for s in scrapes if s.value != 1.0)
    if view.facts("metrics_unavailable"):
        yield Issue("warning", "warning", f"no server metrics: {view.facts('metrics_unavailable')[-1].value}")
    elif not scrapes:
        yield Issue("warning", "warning", "no server metrics were read")
    elif failed:
        yield Issue("warning", "warning", f"{failed} of {plural(len(scrapes), 'metrics reading')} failed")
    if view.run.bad_lines:
        yield Issue(
            "warning", "warning", f"{plural(view.run.bad_lines, 'damaged line')} of the records skipped"
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


CHECKS: tuple[Check, ...] = (
    no_success,
    late_client,
    late_dispatch,
    batched_reads,
    client_cpu,
    client_descriptors,
    client_stood_still,
    clocks,
    cache_contaminated,
    cut_short,
    server_restarted,
    steadiness.not_steady,
    asked_and_got,
    usage_missing,
    samples_missing,
    shared_cores,
)


def check(view: View) -> tuple[Validity, list[Issue]]:
    """Every check, in the order of `CHECKS`."""
    issues = [issue for one in CHECKS for issue in one(view)]
    reasons = [i.text for i in issues if i.level == "invalid"]
    warnings = [i.text for i in issues if i.level == "warning"]
    return Validity(valid=not reasons, reasons=reasons, warnings=warnings), issues
