"""The host killed the process: kernel, cgroup, Ray, kubelet, shell.

A kernel or container record is proof. A bare SIGKILL is not: clean-up scripts, probes and people send it
too, so it counts only when nothing before it explains the death.
"""

from __future__ import annotations

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, explained_before, size, told
from kvprobe.evidence.events import Event

_NOT_CUDA = "the host killed the process: host memory, not GPU memory, ran out"
_CHECK = [
    "`dmesg -T | grep -i oom` or `kubectl describe pod` for the record of the kill",
    "the resident memory of the process over time, page-locked buffers included (no rss figure has them)",
]
_REMEDY = [
    "give the container or host more memory: at least the size of the weights while they load, plus host KV "
    "buffers",
    "less host memory in the engine: no swap space or CPU offload, fewer loading workers, memory-mapped "
    "weights",
]
_FULL = 0.98
_MIND = ["an exit code other than 137, or no kernel record of an OOM kill at that time"]


def host_kill(view: LogView) -> list[LogCandidate]:
    """A record of the kill by kernel, cgroup, container runtime, Ray or systemd-oomd."""
    killed = [e for e in view.all("killed") if e.get("how") != "signal"]
    if not killed:
        return _only_invoked(view)
    best = max(killed, key=lambda e: (e.get("anon") is not None, e.get("used") is not None, len(e.values)))
    extra = view.all("cgroup_limit", "oom_largest_task", "container_limit", "oom_invoked")
    return [
        candidate(
            "host_oom_kill",
            "certain",
            _kill_words(view, best, killed),
            [cite(best), *cites((e for e in killed if e is not best), 2), *cites(extra, 2)],
            fatal=True,
            at=best,
            check_first=_CHECK,
            remedy=_REMEDY,
            would_change_my_mind=["the victim is no process of the engine, and the engine ran on"],
            excludes={"capacity_exhausted": _NOT_CUDA},
        )
    ]


def _only_invoked(view: LogView) -> list[LogCandidate]:
    """An excerpt that ends before the victim is named."""
    return [
        candidate(
            "host_oom_kill",
            "likely",
            f"The kernel ran out of host memory: {e.get('process')} invoked the OOM killer; the victim is "
            f"not in the excerpt, and the one that invoked it may be innocent.",
            [cite(e)],
            fatal=True,
            at=e,
            check_first=_CHECK,
            remedy=_REMEDY,
            would_change_my_mind=["`Killed process` names a process that is not the engine's"],
            excludes={"capacity_exhausted": _NOT_CUDA},
        )
        for e in view.all("oom_invoked")[:1]
    ] or [_at_its_limit(e) for e in view.all("cgroup_limit") if _full(e)][:1]


def _full(event: Event) -> bool:
    used, limit = event.get("used"), event.get("limit")
    return bool(used and limit and used >= _FULL * limit and event.get("failures"))


def _at_its_limit(event: Event) -> LogCandidate:
    """The killer's report of a container; the kernel prints this line only when it kills there."""
    return candidate(
        "host_oom_kill",
        "likely",
        f"A container used {size(event.get('used'))} of its limit of {size(event.get('limit'))} and hit it "
        f"{event.get('failures')} times; the kernel prints this when it kills there; the victim is not in "
        "the excerpt.",
        [cite(event)],
        fatal=True,
        at=event,
        check_first=_CHECK,
        remedy=_REMEDY,
        would_change_my_mind=["`Killed process` names a process that is not the engine's"],
        excludes={"capacity_exhausted": _NOT_CUDA},
    )


def _kill_words(view: LogView, best: Event, killed: list[Event]) -> str:
    who = {
        "kernel": "The kernel's OOM killer",
        "container": "The container runtime (its memory limit)",
        "ray": "Ray's memory monitor",
    }.get(str(best.get("how")), f"{best.get('how')}")
    victim = best.get("process") or next((e.get("process") for e in killed if e.get("process")), None)
    held = best.get("anon") or best.get("rss")
    parts = [f"{who} killed {victim or 'the process'} for host memory"]
    if held is not None:
        parts.append(f"which held {size(held)}")
    used, total = best.get("used"), best.get("total")
    if used is not None and total is not None:
        parts.append(f"with {size(used)} of {size(total)} in use on the node")
    limit = told(view, "limit", "cgroup_limit") or told(view, "limit", "container_limit")
    memcg = any("MEMCG" in str(e.get("constraint")) or "cgroup" in str(e.get("scope")) for e in killed)
    if limit is not None:
        parts.append(f"at a limit of {size(limit)}")
    elif memcg:
        parts.append("at the limit of its container (cgroup), not of the machine")
    largest = view.last("oom_largest_task")
    if largest is not None and largest.get("process") != victim:
        parts.append(f"while the largest task was {largest.get('process')} with {size(largest.get('rss'))}")
    return ", ".join(parts) + "; the GPU is not the cause."


def sigkill(view: LogView) -> list[LogCandidate]:
    """SIGKILL without a record of why: `Killed`, exit code 137, a runner that was `signal: killed`."""
    if any(e.get("how") != "signal" for e in view.all("killed")):
        return []
    runner = [e for e in view.all("runner_died") if "signal: killed" in str(e.get("reason"))]
    signals = [*view.all("signal"), *(e for e in view.all("killed") if e.get("how") == "signal"), *runner]
    signals = [e for e in signals if explained_before(view, e) is None and not _timed_out(view, e)]
    if not signals:
        return []
    first = signals[0]
    probe, innocent = view.last("probe_failed"), view.last("not_oom_killed")
    if probe is not None and not any(e.get("how") == "shell" for e in signals):
        return [_probe(probe, first)]
    if first.get("reason") == "Error" and all(e.get("how") == "container" for e in signals):
        return [_killed_by_whom(first)]
    sure: Confidence = "likely" if first.get("how") in {"shell", "signal"} or runner else "suspected"
    if first.get("how") == "signal" and not runner and view.phase_at(first) not in ("load", None):
        sure = "suspected"  # launchers and watchdogs send the same signal to a rank that hangs
    if any(e.line < first.line for e in view.all("child_died")):
        sure = "suspected"  # SGLang kills its own process tree once a child is gone
    said = f" (phase: {view.phase_at(first)})" if view.phase_at(first) else ""
    doubt = " `OOMKilled: false` says that the container's own limit was not hit." if innocent else ""
    return [
        candidate(
            "host_oom_kill",
            "suspected" if innocent else sure,
            f"The process got SIGKILL{said} without an error of its own, as when the host runs out of "
            f"memory; SIGKILL alone does not prove who sent it.{doubt}",
            [*cites(signals), *([cite(innocent)] if innocent else [])],
            fatal=True,
            at=first,
            check_first=_CHECK,
            remedy=_REMEDY,
            would_change_my_mind=_MIND,
        )
    ]


def _timed_out(view: LogView, signal: Event) -> bool:
    """A supervisor that says it gave the worker up before it sent the signal."""
    return any(e.line <= signal.line for e in view.all("worker_timeout") if e.source == signal.source)


def _killed_by_whom(signal: Event) -> LogCandidate:
    """Exit 137 that the kubelet does not call OOMKilled."""
    return candidate(
        UNKNOWN,
        "suspected",
        "The container got SIGKILL (exit 137) with `Reason: Error`: at the container's own memory limit the "
        "kubelet would have said OOMKilled. A failed probe, an eviction, a node that was itself out of "
        "memory, or a killed child remain.",
        [cite(signal)],
        fatal=True,
        at=signal,
        check_first=["`kubectl describe pod` for probe failures and evictions at that time"],
        remedy=[
            "collect `dmesg -T | grep -i oom` of the node",
            "collect the events of the pod and node, and the container's log before the kill (`--previous`)",
        ],
        would_change_my_mind=["a kernel record of an OOM kill at that time: then host_oom_kill"],
    )


def _probe(probe: Event, signal: Event) -> LogCandidate:
    restarts = str(probe.get("probe")).lower() in ("liveness", "startup") and signal.get("reason") == "Error"
    return candidate(
        "not_memory",
        "likely" if restarts else "suspected",  # a readiness probe kills nothing; a dead container fails all
        f"Exit 137 is the kubelet's own SIGKILL after a failed {probe.get('probe')} probe, not a lack of "
        f"memory.",
        [cite(probe), cite(signal)],
        fatal=True,
        at=probe,
        check_first=["how long the start really takes against failureThreshold x periodSeconds of the probe"],
        remedy=[
            "a startup probe whose budget is longer than the slowest start",
            "faster loading of the weights",
        ],
        would_change_my_mind=["`Reason: OOMKilled`, or a kernel record of an OOM kill"],
        excludes={"host_oom_kill": "the probe that failed explains exit 137, and no OOM record is there"},
    )


def evicted(view: LogView) -> list[LogCandidate]:
    """The kubelet evicted the pod."""
    event = view.last("evicted")
    if event is None:
        return []
    memory = event.get("resource") == "memory"
    return [
        candidate(
            "host_oom_kill" if memory else "not_memory",
            "likely",
            f"The kubelet evicted the pod because the node was low on {event.get('resource')}.",
            [cite(event)],
            fatal=True,
            at=event,
            check_first=["requests and limits of the pod, and what else runs on the node"],
            remedy=_REMEDY if memory else [f"more {event.get('resource')} for the pod or node"],
            would_change_my_mind=["an eviction that came after the failure"],
        )
    ]


def cut_off(view: LogView) -> list[LogCandidate]:
    """A log that stops while weights load, or in mid-work of the reference server: no word of an end."""
    if view.alive:
        return []
    for source, how in view.ended.items():
        events = [e for e in view.events if e.source == source and e.provenance != "quoted"]
        own = any(e.name == "serving" and e.engine == "reference" for e in events)
        if not events or (how != "cut" and not own) or view.all("killed", "signal", "shutdown"):
            continue
        last = events[-1]
        if explained_before(view, last) is not None or last.name in {"exception", "engine_dead"}:
            continue
        phases = [e.phase for e in events if e.phase is not None]
        busy = last.name == "engine_stats" and last.engine == "reference" and (last.get("running") or 0) > 0
        if not phases or (phases[-1] != "load" and not busy):
            continue
        doing = "while the weights load" if phases[-1] == "load" else "with requests running"
        return [
            candidate(
                "host_oom_kill",
                "suspected",
                f"The log stops {doing}, without a traceback or a word of shutting down, as after a SIGKILL "
                f"of the host; a log cannot prove it.",
                [cite(last)],
                fatal=True,
                at=last,
                check_first=_CHECK,
                remedy=_REMEDY,
                would_change_my_mind=["the process still runs, or it ended with another exit code than 137"],
            )
        ]
    return []


RULES: tuple[LogRule, ...] = (host_kill, sigkill, evicted, cut_off)
