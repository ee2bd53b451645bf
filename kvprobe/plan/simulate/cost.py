"""How long a step takes: fixed, by token, by KV token that is read, by query-key pair.

    seconds = fixed + token x tokens + pair x pairs + kv x contexts            (fitted to a run)
    seconds = max(fixed, token x tokens + pair x pairs) + kv x contexts        (roofline of a GPU)

`fixed` is reading the weights once, `contexts` the tokens of KV that the step reads: bandwidth. `tokens` and
`pairs` are arithmetic. `front` is what a request spends outside of steps (network, parsing): a fit tells it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvprobe.errors import Problem, UsageError
from kvprobe.model.devices import Device, device
from kvprobe.model.spec import Attention, ModelSpec

FLOPS_SHARE = 0.5
"""Share of the peak arithmetic that prefill reaches."""
BANDWIDTH_SHARE = 0.75
"""Share of the peak bandwidth that decoding reaches. Both are assumptions, and printed as such."""
STEP_S = 0.002
"""What a step costs besides: launching, sampling, the scheduler. An assumption too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds; `source` says where they are from, `notes` what was assumed or how well it fits."""

    fixed_s: float
    token_s: float
    kv_token_s: float = 0.0
    pair_s: float = 0.0
    front_s: float = 0.0
    roofline: bool = False
    source: str = "none"
    notes: tuple[str, ...] = ()
    seen_running: int | None = None
    """Most requests that decoded at once in the run of a fit: beyond it a step is extrapolated."""


ASSUMED = StepCost(
    fixed_s=0.02,
    token_s=40e-6,
    source="assumed",
    notes=(
        "20 ms a step and 40 us a token are an order of magnitude, no more (an 8B model on one large GPU): "
        "times, and how many requests are there at once, follow from it; give --fit RUN or --gpu NAME",
    ),
)
"""Where nothing is known of the machine."""


def from_gpu(name: str, spec: ModelSpec, *, kv_bytes_per_token: float, tp: int = 1) -> StepCost:
    """The roofline of a GPU of the table. Raises UsageError where a figure is not known.

    Arithmetic: 2 FLOP a weight and token, 4 FLOP a query-key pair, head and dimension. Bandwidth: the
    weights once a step, each KV token once.
    """
    found = device(name)
    stored, parameters, note = _weights(spec)
    flops = found.peak_flops.get("bf16")
    if found.bandwidth_bytes_per_s is None or flops is None:
        what = "bandwidth" if flops else "bf16 peak"
        raise UsageError(
            Problem("gpu_unknown", f"the {what} of {found.name} is not in the table", "give --fit RUN")
        )
    rate, bandwidth = flops * FLOPS_SHARE * tp, found.bandwidth_bytes_per_s * BANDWIDTH_SHARE
    return StepCost(
        fixed_s=stored / tp / bandwidth + STEP_S,
        token_s=2.0 * parameters / rate,
        kv_token_s=kv_bytes_per_token / bandwidth,
        pair_s=_pair_flops(spec) / rate,
        roofline=True,
        source=f"gpu table: {found.name}",
        notes=(_assumed(found, tp), note),
    )


def _assumed(found: Device, tp: int) -> str:
    assert found.bandwidth_bytes_per_s is not None
    return (
        f"assumed: {FLOPS_SHARE:.0%} of {found.peak_flops['bf16'] / 1e12:,.0f} TFLOP/s (bf16), "
        f"{BANDWIDTH_SHARE:.0%} of {found.bandwidth_bytes_per_s / 1e9:,.0f} GB/s, {STEP_S * 1e3:g} ms a step "
        f"besides, perfect scaling over {tp} GPU(s): times are a model, not a measurement"
    )


def _weights(spec: ModelSpec) -> tuple[int, int, str]:
    """Bytes of all weights, parameters that a token meets, and what to say of them."""
    stored = spec.weight_bytes
    if stored is None and spec.weight_bytes_range is not None:
        stored = sum(spec.weight_bytes_range) // 2
    if stored is None:
        raise UsageError(
            Problem(
                "weights_unknown",
                f"the weights of {spec.name} are not known: {spec.weight_note or 'no files'}",
                "give --fit RUN, a run of kvprobe on that machine",
            )
        )
    parameters = spec.parameters or stored // 2
    note = f"{stored / 2**30:.2f} GiB of weights, {parameters:,} parameters"
    if any("expert" in key for key in spec.raw):
        note += "; all experts are counted, so that prefill comes out too slow"
    return stored, parameters, note


def _pair_flops(spec: ModelSpec) -> float:
    """FLOP of one query-key pair over all layers: scores and sums, for every query head."""
    total = 0.0
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                total += 2.0 * mixer.query_heads * (mixer.k_dim + mixer.v_dim)
    return total
