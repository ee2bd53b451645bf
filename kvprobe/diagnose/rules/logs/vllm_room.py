"""The room that vLLM gave itself: every line about its budget, brought together.

V0 prints total x utilisation = budget, then weights, non-torch and activation peak; V1 prints the weights
and what is left. What is missing stays null; sums are made only of what was printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.oom_case import setting
from kvprobe.errors import UsageError
from kvprobe.evidence.events import Event
from kvprobe.model.devices import device
from kvprobe.summary.units import size

_SPENT: Final = ("weights", "activation_peak", "non_torch")


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
    initial_use: int | None
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
    if "peak_torch" in values and "weights" in values:
        # 0.6.3 and 0.6.4 print weights and activations together.
        values.setdefault("activation_peak", max(0.0, values["peak_torch"] - values["weights"]))
    kv = _int(values.get("kv"))
    if kv is None and {"limit", "weights", "activation_peak"} <= values.keys():
        kv = round(values["limit"] - sum(values.get(k, 0.0) for k in _SPENT))
    return Room(
        total=_int(values.get("total")) or card_total(view),
        initial_use=_int(values.get("initial_use")),
        utilisation=utilisation,
        weights=_int(values.get("weights")),
        non_torch=_int(values.get("non_torch")),
        activation=_int(values.get("activation_peak")),
        graphs=_int(values.get("graphs")),
        kv=kv,
        told=events[-4:],
    )


def card_total(view: LogView) -> int | None:
    """The card's memory by a pasted `nvidia-smi`, an out-of-memory message, or the name of the GPU."""
    told = [e.get("total") for e in view.all("smi_memory", "torch_oom") if e.get("total")]
    if told:
        return int(told[0])
    named = view.first("gpu_name")
    if named is None:
        return None
    try:
        return device(str(named.get("name"))).memory_bytes
    except UsageError:
        return None


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


def least_utilisation(view: LogView, room: Room) -> str | None:
    """(needed + one sequence) / total, rounded up to 0.01; without the KV of a sequence, with 1 % of room."""
    if room.total is None or room.needed is None:
        return None
    one = _one_sequence(view) or round(0.01 * room.total)
    least = -(-100 * (room.needed + one) // room.total)
    return f"{least / 100:.2f}" if least < 100 else None


def _one_sequence(view: LogView) -> int | None:
    prediction = view.prediction or {}
    kv = prediction.get("kv") or {}
    per_token = kv.get("bytes_per_token_per_gpu")
    told = [n for e in view.all("config", "pool_size") if isinstance(n := e.get("max_model_len"), int)]
    tokens = told[-1] if told else None
    return round(per_token * tokens) if per_token and tokens else None
