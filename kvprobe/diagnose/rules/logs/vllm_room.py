"""The room that vLLM gave itself: every line about its budget, brought together.

V0 prints total x utilisation = budget, then weights, non-torch and activation peak; V1 prints the weights
and what is left. What is missing stays null; sums are made only of what was printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.oom_case import setting
from kvprobe.evidence.events import Event
from kvprobe.summary.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes; `kv` may be negative. `told` are the lines it was read from."""

    total: int | None
    utilisation: float | None
    weights: int | None
    non_torch: int | None
    activation: int | None
    graphs: int | None
    kv: int | None
    told: list[Event]

    @property
    def limit(self) -> int | None:
        if self.total is None or self.utilisation is None:
            return None
        return round(self.total * self.utilisation)

    @property
    def needed(self) -> int | None:
        """Weights, non-torch, activations and graphs; null without the weights."""
        if self.weights is None:
            return None
        return self.weights + sum(max(0, p or 0) for p in (self.non_torch, self.activation, self.graphs))

    def sum_text(self) -> str:
        """`Budget 8.00 GiB x 0.70 = 5.60; weights 5.20 + …; KV = -1.05`"""
        parts = [
            f"{name} {size(value)}"
            for name, value in (
                ("weights", self.weights),
                ("non-torch", self.non_torch),
                ("activations", self.activation),
                ("graphs", self.graphs),
            )
            if value is not None
        ]
        text = ""
        if self.total is not None and self.utilisation is not None and self.limit is not None:
            text = f"budget {size(self.total)} x {self.utilisation:.2f} = {size(self.limit)}; "
        text += " + ".join(parts)
        return text + (f"; KV = {size(self.kv)}" if self.kv is not None else "")


def room_of(view: LogView) -> Room:
    """The last value that was printed of each term, of the source that failed or the only one."""
    events = view.all("budget", "available_kv", "weights_loaded", "graph_estimate", "free_below_desired")
    values: dict[str, float] = {}
    for name, value in _terms(events):
        values[name] = value
    utilisation = values.get("utilisation") or setting(view, "gpu_memory_utilization")
    kv = _int(values.get("kv"))
    if kv is None and values.get("limit") and values.get("weights") and values.get("activation_peak") is not None:
        spent = sum(values.get(k, 0.0) for k in ("weights", "activation_peak", "non_torch"))
        kv = round(values["limit"] - spent)
    return Room(
        total=_int(values.get("total")) or smi_total(view),
        utilisation=utilisation,
        weights=_int(values.get("weights")),
        non_torch=_int(values.get("non_torch")),
        activation=_int(values.get("activation_peak")),
        graphs=_int(values.get("graphs")),
        kv=kv,
        told=events[-4:],
    )


def smi_total(view: LogView) -> int | None:
    """The card's memory by a pasted `nvidia-smi`, or by an out-of-memory message."""
    told = [e.get("total") for e in view.all("smi_memory", "torch_oom") if e.get("total")]
    return told[0] if told else None


def _terms(events: list[Event]) -> Iterator[tuple[str, float]]:
    for e in events:
        if e.name == "available_kv" and e.get("bytes") is not None:
            yield "kv", e.get("bytes")
        elif e.name == "graph_estimate" and e.get("bytes") is not None:
            yield "graphs", e.get("bytes")
        else:
            yield from ((k, v.value) for k, v in e.values.items() if isinstance(v.value, int | float))


def _int(value: float | None) -> int | None:
    return None if value is None else round(value)
