"""Checks of the load generator itself: was it late, starved, or out of something?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from kvprobe.diagnose import arrivals
from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.model import Quantity
from kvprobe.diagnose.session_turns import waiting_turns
from kvprobe.diagnose.view import View
from kvprobe.load.pauses import RETRY_AFTER_WAIT
from kvprobe.summary import activity
from kvprobe.summary.latency import between, dispatch_delay_s
from kvprobe.summary.units import percent, plural, seconds, whole

LATE_S = 0.010
LATE_SHARE = 0.05
LAGS_PER_WINDOW = 12
"""Windows of 250 ms, a lag about every 20 ms (kvprobe.load.health)."""
BATCHED_GAP_SHARE = 0.3
BATCHED_LAG_SHARE = 0.5
SHARED_CHUNKS_SHARE = 0.10
CPU_FULL_RATIO = 0.95
CPU_FULL_SHARE = 0.10
STOOD_STILL_S = 2.0
STALLED_S = 0.1
"""A lag from here on is told even if it was the only one: the slowest values may be the client's own."""
HICCUP_SHARE = 0.05
"""One late request among so many that it is at most this share of them says nothing about the rest."""


def late_client(view: View) -> Iterator[Issue]:
    """Event-loop lag: every stamp of the client may be that late."""
    lag = loop_lag_p99_s(view)
    if lag is None or lag <= LATE_S:
        return
    metrics = view.summary.metrics
    for name, found in (("TTFT", metrics.ttft_s), ("inter-chunk gap", metrics.gap_s)):
        which, reported = ("median", found.p50) if found.p50 is not None else ("mean", found.mean)
        if reported is not None and lag > LATE_SHARE * reported:
            yield Issue(
                "invalid",
                "late_client",
                f"the client was late: its event loop woke {seconds(lag)} late at p99, "
                f"{percent(lag / max(reported, 1e-9))} of the {which} {name} ({seconds(reported)})",
                {"loop_lag_p99": Quantity(lag, "s"), "reported": Quantity(reported, "s")},
            )
            return


def loop_lag_p99_s(view: View) -> float | None:
    """p99 of the latest worker's event-loop lag over the load, from the worst lag of each window.

    A window holds about `LAGS_PER_WINDOW` lags. The largest of k independent lags stays below x
    with probability F(x)**k, so the p99 of the lags is the 0.99**k quantile of the largest ones.
    """
    workers = by_worker(view, "client.loop_lag_s")
    found = [float(np.quantile(lags, 0.99**LAGS_PER_WINDOW)) for lags in workers.values()]
    return max(found, default=None)


def by_worker(view: View, metric: str) -> dict[str, list[float]]:
    """Readings of the load workers while the load ran, each worker by itself: the punctual ones must not
    hide a late one. Workers of other machines, whose clock is another, are taken whole."""
    own = {t for t, _ in view.load_series(metric)}
    found: dict[str, list[float]] = defaultdict(list)
    whole: dict[str, list[float]] = defaultdict(list)
    for sample, value in activity.readings(view.run.samples, metric):
        worker = sample.labels.get("worker", "0")
        whole[worker].append(value)
        if sample.t_ns in own:
            found[worker].append(value)
    return {worker: found.get(worker) or values for worker, values in whole.items()} if own else dict(found)


def _full(readings: list[float]) -> int:
    return sum(1 for value in readings if value >= CPU_FULL_RATIO)


def late_dispatch(view: View) -> Iterator[Issue]:
    """Requests that left later than the schedule wanted: capped by its own users, or simply late."""
    delay = view.summary.metrics.dispatch_delay_s
    p99 = delay.p99 if delay.p99 is not None else delay.max
    told = view.summary.metrics.ttft_s.p50
    wait = told if told is not None else median_wait_s(view)
    if p99 is None or p99 <= LATE_S:
        return
    label = "p99" if delay.p99 is not None else "worst"
    facts = {"dispatch_delay": Quantity(p99, "s"), "requests": Quantity(delay.n, "count")}
    if turns := waiting_turns(view, LATE_S):
        text = (
            f"{whole(turns)} turns left up to {seconds(p99)} after their time ({label}): the answer before "
            "them was not there yet, so the server does not keep this pace; latency from the schedule counts "
            "the wait, latency from sent does not"
        )
        yield Issue("warning", "warning", text, facts)
    elif arrivals.late_because_full(view, LATE_S):
        yield Issue(
            "warning",
            "warning",
            f"client-capped: requests left {seconds(p99)} late ({label}) because all allowed requests were "
            "in flight; latency from the schedule is the honest number, latency from sent is not",
            facts,
        )
    elif wait is None or p99 > LATE_SHARE * wait:
        late = sum(1 for r in view.measured if (d := dispatch_delay_s(r)) is not None and d > LATE_S)
        # With too few requests for a p99 the worst one stands in, and that may be a hiccup.
        hiccup = delay.p99 is None and late == 1 and late <= HICCUP_SHARE * delay.n
        yield Issue(
            "warning" if hiccup else "invalid",
            "warning" if hiccup else "late_client",
            f"the client was late: requests left {seconds(p99)} after the schedule wanted them ({label}; "
            f"{late} of {whole(delay.n)} were late), with room to send them",
            facts,
        )


def median_wait_s(view: View) -> float | None:
    """From sent to the end of all requests, for a server of which no first token was seen: when each hangs
    until its timeout, a few milliseconds of delay at the client explain nothing."""
    waits = [w for r in view.measured if (w := between(r.end_ns, r.sent_ns)) is not None]
    return float(np.median(waits)) if waits else None


def batched_reads(view: View) -> Iterator[Issue]:
    """Gaps near zero between long ones, and several chunks were taken from one receive, or the client
    was late. The gaps are wrong either way; it is the client's doing only if its loop was late."""
    gap = view.summary.metrics.gap_s
    if gap.p50 is None or gap.mean is None or gap.p50 >= BATCHED_GAP_SHARE * gap.mean:
        return
    chunks = sum(r.content_chunks for r in view.ok)
    shared = sum(r.shared_receive_chunks for r in view.ok)
    lag = loop_lag_p99_s(view)
    share = shared / chunks if chunks else 0.0
    late = lag is not None and lag > LATE_S
    if share < SHARED_CHUNKS_SHARE and not late:
        return
    # A loop that is as late as the gaps are long takes several chunks at once by itself.
    was_late = late or lag is None or lag > BATCHED_LAG_SHARE * gap.mean
    told = (
        f"the median gap is {seconds(gap.p50)}, the mean {seconds(gap.mean)}, "
        f"and {percent(share)} of the chunks came in one receive together with an earlier one"
    )
    punctual = (
        f"chunks came in batches: {told}, although the client was never late (loop lag p99 "
        f"{seconds(lag or 0.0)}): the server, or a proxy before it, sends them together, and chunk "
        "gaps describe the batches, not the tokens"
    )
    yield Issue(
        "invalid",
        "batched_reads" if was_late else "batched_stream",
        f"the client read in batches: {told}" if was_late else punctual,
        {
            "gap_p50": Quantity(gap.p50, "s"),
            "gap_mean": Quantity(gap.mean, "s"),
            "shared_receive_chunks": Quantity(share, "ratio"),
            "loop_lag_p99": Quantity(lag, "s"),
        },
    )


def client_cpu(view: View) -> Iterator[Issue]:
    """A load worker is one thread: at a full core it sends and stamps late."""
    workers = by_worker(view, "client.cpu_ratio")
    worst = max(workers, key=lambda w: _full(workers[w]) / len(workers[w]), default="")
    points = workers.get(worst, [])
    full = _full(points)
    if len(points) < 4 or full <= CPU_FULL_SHARE * len(points):
        return
    which = f" of worker {worst}" if len(workers) > 1 else ""
    yield Issue(
        "invalid",
        "client_cpu",
        f"the client ran out of CPU: the core{which} was full in {percent(full / len(points))} of the "
        "readings",
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


def retry_after_obeyed(view: View) -> Iterator[Issue]:
    """The server set the pace of the load, as the workload allowed it to."""
    waits = [s.value for s in view.run.samples if s.metric == RETRY_AFTER_WAIT and s.value is not None]
    if waits:
        yield Issue(
            "warning",
            "warning",
            f"the server's Retry-After was obeyed {plural(len(waits), 'time')}: users waited "
            f"{seconds(sum(waits))} in all, so that the load is what the server let through",
            {"waits": Quantity(len(waits), "count"), "waited": Quantity(sum(waits), "s")},
        )


def client_stood_still(view: View) -> Iterator[Issue]:
    """The client did not run at all for a while (stopped, suspended, starved)."""
    points = view.load_series("client.loop_lag_s")
    worst = max((v for _, v in points), default=0.0)
    fact = {"stood_still": Quantity(worst, "s")}
    if worst >= STOOD_STILL_S:
        yield Issue(
            "invalid",
            "client_stood_still",
            f"the client stood still for {seconds(worst)} (stopped or suspended): "
            "nothing was measured meanwhile",
            fact,
        )
    elif worst >= STALLED_S and worst > LATE_SHARE * (view.summary.metrics.ttft_s.p50 or 0.0):
        long = sum(1 for _, v in points if v >= STALLED_S)
        yield Issue(
            "warning",
            "warning",
            f"the client's event loop stalled for up to {seconds(worst)} ({plural(long, 'stall')} of "
            f"{seconds(STALLED_S)} or more): the slowest latencies may be the client's own",
            fact,
        )


def lost_records(view: View) -> Iterator[Issue]:
    """A run that ended as planned has a record of every request that was sent."""
    lost = view.summary.requests.unfinished
    if view.run.status == "complete" and lost:
        yield Issue(
            "invalid",
            "lost_records",
            f"{plural(lost, 'request')} of {whole(view.summary.requests.sent)} left no record although the "
            "load ended as planned: the load generator failed on them (see log.txt)",
            {"without_record": Quantity(lost, "count")},
        )
