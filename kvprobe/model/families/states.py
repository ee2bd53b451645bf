"""Recurrent layers: their constant tensors, and the families made of them alone.

LAYOUTS rows 10 and 11. Shapes are those that vLLM's `MambaStateShapeCalculator` and SGLang allocate:
conv rows are kernel width - 1. Where the configuration names no dtype for the SSM state, Mamba-2 and
delta-net states are taken as float32 (SGLang's default), and `dtype_stated` stays false.
"""

from __future__ import annotations

from kvprobe.model.families.geometry import HIDDEN, Reading, layer_count, uniform
from kvprobe.model.fields import Fields
from kvprobe.model.spec import State, StatePart

_MAX_KERNEL = 64


def ssm_dtype(fields: Fields, default: str | None) -> tuple[str | None, bool]:
    """The dtype of the SSM state, and whether the configuration states it."""
    stated = fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if stated is not None and stated != "auto":
        return stated, True
    if default is not None:
        fields.assume(
            f"no dtype of the recurrent state in the configuration: {default} "
            "(SGLang's default; vLLM keeps the model's dtype unless told otherwise)"
        )
    return default, False


def gated_delta_net(fields: Fields) -> State:
    """Gated DeltaNet of Qwen3-Next and Qwen3.5: vh*kd*vd state, (2*kh*kd + vh*vd) conv channels."""
    key_heads, value_heads = fields.size("linear_num_key_heads"), fields.size("linear_num_value_heads")
    key_dim, value_dim = (_linear_width(fields, f"linear_{name}_head_dim") for name in ("key", "value"))
    rows = fields.size_or(4, "linear_conv_kernel_dim", low=2, high=_MAX_KERNEL) - 1
    dtype, stated = ssm_dtype(fields, "float32")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return State(
        kind="gated_delta_net",
        parts=(
            StatePart(name="conv", elements=channels * rows, rows=rows),
            StatePart(
                name="ssm", elements=value_heads * key_dim * value_dim, dtype=dtype, dtype_stated=stated
            ),
        ),
        divisors=(key_heads, value_heads),
    )


def _linear_width(fields: Fields, key: str) -> int:
    """A head's width of the linear layers: given, or the class default where the class has one."""
    width = fields.optional(key) or fields.class_size(key)
    if width is None:
        fields.missing(key)
    return width


def kimi_delta(fields: Fields) -> State:
    """Kimi delta attention: a square float32 state per head, three conv states (q, k, v)."""
    part = fields.part("linear_attn_config")
    inner = fields if part is None else Fields(part, source=fields.source, assumptions=fields.assumptions)
    heads = inner.size_or(32, "num_heads", "linear_num_heads")
    width = inner.size_or(128, "head_dim" if part is not None else "linear_head_dim", "linear_head_dim")
    rows = inner.size_or(4, "short_conv_kernel_size", "linear_conv_kernel_dim", low=2, high=_MAX_KERNEL) - 1
    return State(
        kind="gated_delta_net",
        parts=(
            StatePart(name="conv", elements=3 * heads * width * rows, rows=rows),
            StatePart(name="ssm", elements=heads * width * width, dtype="float32"),
        ),
        divisors=(heads,),
    )


def mamba2_state(
    *, heads: int, head_dim: int, groups: int, state: int, rows: int, dtype: str | None, stated: bool
) -> State:
    """Mamba-2: heads*head_dim*state, and conv over x, B and C (two vectors of `state` per group)."""
    inner, grouped = heads * head_dim, 2 * state * rows
    return State(
        kind="mamba2",
        parts=(
            StatePart(
                name="conv",
                elements=inner * rows + groups * grouped,
                rows=rows,
                groups=groups,
                group_elements=grouped,
            ),
            StatePart(name="ssm", elements=inner * state, dtype=dtype, dtype_stated=stated),
        ),
        divisors=(heads,),
    )


def mamba2(fields: Fields, hidden: int) -> State:
    """The Mamba-2 mixer under the names that Bamba, Granite 4, Falcon-H1, Nemotron-H and Zamba2 use."""
    heads = fields.size("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    dtype, stated = ssm_dtype(fields, "float32")
    return mamba2_state(
        heads=heads,
        head_dim=_mamba2_head_dim(fields, hidden, heads),
        groups=fields.size_or(1, "mamba_n_groups", "n_groups", "mamba_ngroups"),
        state=fields.size("mamba_d_state", "ssm_state_size", "state_size"),
        rows=fields.size_or(4, "mamba_d_conv", "conv_kernel", low=2, high=_MAX_KERNEL) - 1,
        dtype=dtype,
        stated=stated,
    )


def _mamba2_head_dim(fields: Fields, hidden: int, heads: int) -> int:
    """Given, or (expanded hidden size, or `mamba_d_ssm`) / heads."""
    if fields.data.get("mamba_d_head") != "auto":
        width = fields.optional("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
        if width is not None:
            return width
    inner = fields.optional("mamba_d_ssm") or fields.size_or(2, "mamba_expand", "expand", high=64) * hidden
    if inner % heads:
        fields.wrong(
            "mamba_n_heads", f"({heads}) does not divide the inner width {inner}", "add `mamba_d_head`"
        )
    return inner // heads


def mamba1(fields: Fields, hidden: int) -> State:
    """Mamba: inner*state, and a conv over inner; kept in the model's dtype."""
    inner = fields.optional("intermediate_size") if not fields.has("mamba_d_state") else None
    if inner is None:
        inner = fields.size_or(2, "mamba_expand", "expand", high=64) * hidden
    state = fields.size_or(16, "mamba_d_state", "state_size")
    rows = fields.size_or(4, "mamba_d_conv", "conv_kernel", low=2, high=_MAX_KERNEL) - 1
    dtype, stated = ssm_dtype(fields, None)
    return State(
        kind="mamba1",
        parts=(
            StatePart(name="conv", elements=inner * rows, rows=rows),
            StatePart(name="ssm", elements=inner * state, dtype=dtype, dtype_stated=stated),
        ),
        divisors=(inner,),
    )


def lightning(heads: int, width: int) -> State:
    """Lightning attention (MiniMax): one square matrix per head, no convolution."""
    return State(
        kind="lightning", parts=(StatePart(name="ssm", elements=heads * width * width),), divisors=(heads,)
    )


def short_conv(fields: Fields, hidden: int) -> State:
    """The gated short convolution of LFM2: hidden x (kernel - 1)."""
    rows = fields.size_or(3, "conv_L_cache", low=2, high=_MAX_KERNEL) - 1
    return State(
        kind="short_conv",
        parts=(StatePart(name="conv", elements=hidden * rows, rows=rows),),
        divisors=(hidden,),
    )


def gated_linear_recurrence(width: int, rows: int) -> State:
    """RG-LRU of RecurrentGemma: a float32 vector and a conv state."""
    return State(
        kind="rg_lru",
        parts=(
            StatePart(name="conv", elements=width * rows, rows=rows),
            StatePart(name="ssm", elements=width, dtype="float32", dtype_stated=False),
        ),
        divisors=(width,),
    )


def _pure(fields: Fields, state: State, hidden: int) -> Reading:
    return Reading(layers=uniform(layer_count(fields), state), hidden_size=hidden, query_heads=1)


def pure_mamba1(fields: Fields) -> Reading:
    """Mamba and Falcon-Mamba: no attention at all, no byte per token."""
    hidden = fields.size(*HIDDEN)
    return _pure(fields, mamba1(fields, hidden), hidden)


def pure_mamba2(fields: Fields) -> Reading:
    """Mamba-2 (Codestral Mamba)."""
    hidden = fields.size(*HIDDEN)
    return _pure(fields, mamba2(fields, hidden), hidden)


def rwkv4(fields: Fields) -> Reading:
    """RWKV-4: five vectors a layer: two token shifts in the model's dtype, three sums in float32."""
    hidden = fields.size(*HIDDEN)
    inner = fields.optional("attention_hidden_size") or hidden
    parts = (
        StatePart(name="shift", elements=2 * hidden),
        StatePart(name="ssm", elements=3 * inner, dtype="float32"),
    )
    return _pure(fields, State(kind="rwkv", parts=parts), hidden)


def rwkv_matrix(fields: Fields) -> Reading:
    """RWKV-5, 6 and 7: a square float32 matrix per head and two token shifts a layer."""
    hidden = fields.size(*HIDDEN)
    width = fields.size_or(64, "head_size", "head_dim", high=1 << 12)
    if hidden % width:
        fields.wrong("head_size", f"({width}) does not divide hidden_size {hidden}", "correct either of them")
    parts = (
        StatePart(name="shift", elements=2 * hidden),
        StatePart(name="ssm", elements=hidden * width, dtype="float32"),
    )
    return _pure(fields, State(kind="rwkv", parts=parts, divisors=(hidden // width,)), hidden)
