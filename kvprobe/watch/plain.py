"""One line a target and tick, for pipes, files and terminals that cannot move their cursor."""

from __future__ import annotations

from kvprobe.report.sanitize import clean
from kvprobe.watch import shown
from kvprobe.watch.model import Number, TargetView, WatchDocument


def lines(document: WatchDocument) -> list[str]:
    """What a tick says, a line for each target, one for all of several, and one for each GPU."""
    clock = document.t_utc[11:19]
    told = [f"{clock} {_target(view)}" for view in document.targets]
    if document.together is not None:
        told.append(f"{clock} {shown.together(document.together)}")
    told += [f"{clock} {shown.gpu(gpu)}" for gpu in document.gpus or ()]
    return [clean(line, limit=1_000) for line in told]


def _target(view: TargetView) -> str:
    if not view.reachable:
        return f"{view.url} | unreachable: {view.reading.text}"
    n = view.numbers
    figures = [
        f"{view.url} {shown.engine(view)}",
        f"kv {shown.share(n['kv_usage'])}",
        f"running {shown.count(n['running'])}",
        f"waiting {shown.count(n['waiting'])}",
        f"preempted {shown.preemptions(n['preemptions_per_s'])}",
        f"hits {shown.hit_rate(n['prefix_hit_rate'])}",
        f"ttft {_ttft(n['ttft_p50_s'], n['ttft_p95_s'])}",
    ]
    if n["slots"].value is not None:
        figures.append(f"slots {shown.count(n['slots_busy'])}/{shown.count(n['slots'])}")
    return f"{'  '.join(figures)} | {view.reading.text}"


def _ttft(p50: Number, p95: Number) -> str:
    if p50.value is None:
        return shown.missing(p50)
    return f"p50 {shown.latency(p50)} p95 {shown.latency(p95)}{shown.over(p50)}"
