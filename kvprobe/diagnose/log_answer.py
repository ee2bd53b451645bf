"""What is said besides the causes: `unknown` with what was read, and the facts of the log."""

from __future__ import annotations

from typing import Any, Final

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Evidence, Finding
from kvprobe.diagnose.rules.base import finding
from kvprobe.diagnose.rules.logs.base import cite
from kvprobe.diagnose.rules.logs.words import lived_on
from kvprobe.evidence.events import Event

FACT_EVENTS: Final = ("budget", "pool_size", "weights_loaded", "config", "graph_memory", "available_kv")
_OWN_ENGINE: Final = {
    "vllm": "the log of the worker that failed first, from `Initializing an LLM engine` to the traceback",
    "sglang": "the lines from `server_args=` to the traceback, of every rank",
    "llama.cpp": "the log from its first line, with `-lv 5` for the KV cache sizes",
}
_COLLECT: Final = (
    "`nvidia-smi` at the moment of the failure (memory in use, by process)",
    "`dmesg -T | grep -iE 'oom|xid|nvrm'` of the host",
    "the exit code of the process (137 is SIGKILL)",
)


def unexplained(view: LogView) -> Finding | None:
    """An ending in an error that no rule owns: said as `unknown`, with the error itself. Not the
    errors that a server outlived, nor the noise of one that is being stopped."""
    open_ends = [e for e in view.all("exception", "engine_dead") if view.ended.get(e.source) != "shutdown"]
    told = [e for e in open_ends if not lived_on(view, e)]
    if not told:
        return None
    return _unknown(
        view,
        f"The log ends in an error that no known signature explains: {_short(told[0].text)}",
        [cite(e) for e in told[:4]],
    )


def nothing_known(view: LogView) -> Finding:
    """No line of the log bears a known signature."""
    seen = view.all(*{e.name for e in view.events} - {"frame"})[:4]
    return _unknown(view, f"No known signature in {_amount(view)}.", [cite(e) for e in seen])


def _unknown(view: LogView, why: str, evidence: list[Evidence]) -> Finding:
    return finding(
        UNKNOWN,
        "suspected",
        f"{why} Read: {_read(view)}.",
        evidence,
        check_first=["whether the log is whole: its first error, not the wrapper's last one"],
        remedy=[f"collect {what}" for what in _collect(view)],
        would_change_my_mind=["a line with sizes: an allocation failure, a memory budget, a KV pool size"],
    )


def _collect(view: LogView) -> list[str]:
    own = _OWN_ENGINE.get(view.engine or "")
    return [*([own] if own else ["the whole log of the engine, from its start"]), *_COLLECT]


def _amount(view: LogView) -> str:
    lines, read = view.read.get("lines"), view.read.get("bytes")
    if lines is None:
        return "what was read"
    return f"{lines:,} lines" + (f" ({read:,} bytes)" if read is not None else "")


def _read(view: LogView) -> str:
    names: dict[str, int] = {}
    for e in view.events:
        names[e.name] = names.get(e.name, 0) + e.repeats
    parts = [f"{n} x {name}" for name, n in sorted(names.items())][:8]
    engine = f"engine {view.engine} {view.engine_version or ''}".strip() if view.engine else "no engine named"
    return f"{_amount(view)}, {engine}" + (f", {', '.join(parts)}" if parts else ", no fact of memory")


def facts_of(view: LogView) -> dict[str, Any]:
    """The numbers the engine said of itself: the last of each kind, with unit and place."""
    facts: dict[str, Any] = {}
    for name in FACT_EVENTS:
        event = view.last(name)
        if event is not None:
            facts[name] = _fact(event)
    return facts


def _fact(event: Event) -> dict[str, Any]:
    values = {k: {"value": v.value, "unit": v.unit} for k, v in event.values.items()}
    return {"source": event.source, "line": event.line, "values": values}


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + " …"
