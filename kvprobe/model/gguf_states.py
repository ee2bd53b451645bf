"""Recurrent state of a GGUF model, from its `ssm.*` and `wkv.*` keys.

llama.cpp keeps every state in f32, whatever the cache type; the dtypes here are those of the models.
"""

from __future__ import annotations

from kvprobe.model.families.states import mamba2_state as shaped_mamba2
from kvprobe.model.fields import MAX_COUNT, Fields
from kvprobe.model.spec import State, StatePart


def _ssm(fields: Fields) -> tuple[int, int, int]:
    """(conv rows, inner width, state width)."""
    rows = fields.size("ssm.conv_kernel", low=2, high=64) - 1
    return rows, fields.size("ssm.inner_size"), fields.size("ssm.state_size")


def mamba1_state(fields: Fields) -> State:
    rows, inner, state = _ssm(fields)
    parts = (
        StatePart(name="conv", elements=inner * rows, rows=rows),
        StatePart(name="ssm", elements=inner * state),
    )
    return State(kind="mamba1", parts=parts, divisors=(inner,))


def mamba2_state(fields: Fields) -> State:
    rows, inner, state = _ssm(fields)
    heads = fields.size("ssm.time_step_rank")
    if inner % heads:
        fields.wrong("ssm.inner_size", f"is {inner} for {heads} heads", "convert the model again")
    groups = fields.size_or(1, "ssm.group_count")
    return shaped_mamba2(
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state=state,
        rows=rows,
        dtype="float32",
        stated=False,
    )


def delta_net_state(fields: Fields) -> State:
    """Gated DeltaNet: `ssm.group_count` key heads, `ssm.time_step_rank` value heads of inner / heads."""
    rows, inner, state = _ssm(fields)
    keys, values = fields.size("ssm.group_count"), fields.size("ssm.time_step_rank")
    parts = (
        StatePart(name="conv", elements=(inner + 2 * keys * state) * rows, rows=rows),
        StatePart(name="ssm", elements=inner * state, dtype="float32"),
    )
    return State(kind="gated_delta_net", parts=parts, divisors=(keys, values))


def rwkv_state(fields: Fields) -> State:
    """RWKV 6 and 7: `wkv.head_size` rows a head, two token shifts."""
    hidden, width = fields.size("embedding_length"), fields.size("wkv.head_size", high=MAX_COUNT)
    parts = (
        StatePart(name="shift", elements=2 * hidden, dtype="float32"),
        StatePart(name="ssm", elements=hidden * width, dtype="float32"),
    )
    return State(kind="rwkv", parts=parts)
