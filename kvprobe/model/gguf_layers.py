"""Layers of a GGUF model: one reader for plain, windowed, latent and recurrent architectures.

The keys are `{arch}.{name}`; what llama.cpp settles in code and not in the file (the pattern of sliding
layers, the conv rows) is in `GGUF_FAMILIES`, and said in `assumptions` where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kvprobe.model.families.geometry import Reading, divided
from kvprobe.model.families.shared import share_tail
from kvprobe.model.families.windows import FULL, SLIDING
from kvprobe.model.fields import MAX_LAYERS, MAX_TOKENS, Fields
from kvprobe.model.gguf_states import delta_net_state, mamba1_state, mamba2_state, rwkv_state
from kvprobe.model.spec import Attention, Latent, Layer, Mixer, State, StatePart


class ArchFields(Fields):
    """The keys of one architecture, without their prefix."""

    def __init__(self, values: Mapping[str, object], arch: str, *, source: str) -> None:
        prefix = f"{arch}."
        data = {key[len(prefix) :]: value for key, value in values.items() if key.startswith(prefix)}
        super().__init__(data, source=source, owner="llama.cpp")
        self.arch = arch


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How an architecture is read. `period` is llama.cpp's own pattern of sliding layers (0: none)."""

    read: Callable[[ArchFields, int], Reading]
    period: int = 0
    checked: str = ""


def read_layers(fields: ArchFields) -> Reading:
    """The layers of a GGUF model of a known architecture."""
    family = GGUF_FAMILIES[fields.arch]
    return family.read(fields, family.period)


def _counts(fields: ArchFields) -> tuple[int, int]:
    """Layers of the model itself, and of its draft head (counted in `block_count` by the converter)."""
    total = fields.size("block_count", high=MAX_LAYERS)
    drafts = fields.optional("nextn_predict_layers", low=0, high=64) or 0
    if drafts >= total:
        fields.wrong("nextn_predict_layers", f"is {drafts} of {total} layers", "convert the model again")
    return total - drafts, drafts


def _per_layer(fields: ArchFields, key: str, count: int, default: int | None, *, low: int = 0) -> list[int]:
    """A number or a list, one entry a layer; the list may cover draft layers too."""
    if isinstance(fields.data.get(key), list):
        values = fields.sizes(key) or []
        if len(values) < count:
            fields.wrong(key, f"has {len(values)} entries for {count} layers", "convert the model again")
        return values[:count]
    value = fields.optional(key, low=low)
    if value is None:
        if default is None:
            fields.missing(f"{fields.arch}.{key}")
        value = default
    return [value] * count


@dataclass(frozen=True, slots=True)
class _Shape:
    """Heads and widths that all readers below need."""

    layers: int
    drafts: int
    hidden: int
    query: list[int]
    kv: list[int]
    k_dim: int
    v_dim: int


def _shape(fields: ArchFields) -> _Shape:
    count, drafts = _counts(fields)
    hidden = fields.size("embedding_length")
    query = _per_layer(fields, "attention.head_count", count, None, low=1)
    if not fields.has("attention.head_count_kv"):
        fields.assume("attention.head_count_kv is not in the file: multi-head attention")
        kv = query
    else:
        kv = _per_layer(fields, "attention.head_count_kv", count, None)
    width = fields.optional("attention.key_length")
    k_dim = width if width is not None else divided(fields, hidden, max(*query, 1))
    v_dim = fields.optional("attention.value_length") or k_dim
    return _Shape(count, drafts, hidden, query, kv, k_dim, v_dim)


def _attention(shape: _Shape, i: int, **change: object) -> Attention:
    plain = Attention(
        kind="full",
        kv_heads=shape.kv[i],
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        query_heads=max(shape.query[i], 1),
    )
    return replace(plain, **change)  # type: ignore[arg-type]


def _draft_layers(shape: _Shape, mixer: Mixer) -> tuple[Layer, ...]:
    return tuple(Layer(index=shape.layers + i, mixers=(mixer,)) for i in range(shape.drafts))


def attention_only(fields: ArchFields, period: int) -> Reading:
    """Full and sliding layers; heads may vary, and a layer without KV heads has no attention."""
    shape = _shape(fields)
    kinds, window = _kinds(fields, shape.layers, period)
    k_swa = fields.optional("attention.key_length_swa") or shape.k_dim
    v_swa = fields.optional("attention.value_length_swa") or shape.v_dim
    layers = []
    for i, kind in enumerate(kinds):
        if shape.kv[i] == 0:
            layers.append(Layer(index=i, mixers=()))
        elif kind == SLIDING:
            name = "chunked" if fields.arch == "llama4" else "sliding"
            local = _attention(shape, i, kind=name, window_tokens=window, k_dim=k_swa, v_dim=v_swa)
            layers.append(Layer(index=i, mixers=(local,)))
        else:
            layers.append(Layer(index=i, mixers=(_attention(shape, i),)))
    if not any(layer.mixers for layer in layers):
        fields.wrong("attention.head_count_kv", "gives no layer a KV head", "convert the model again")
    shared = fields.optional("attention.shared_kv_layers", low=0, high=MAX_LAYERS) or 0
    return Reading(
        layers=share_tail(fields, tuple(layers), kinds, shared),
        draft_layers=_draft_layers(shape, _attention(shape, shape.layers - 1)),
        hidden_size=shape.hidden,
        query_heads=max(shape.query),
    )


def _kinds(fields: ArchFields, count: int, period: int) -> tuple[list[str], int | None]:
    """Kind of each layer, and the window: by the file's pattern, else by llama.cpp's."""
    window = fields.optional("attention.sliding_window", low=0, high=MAX_TOKENS)
    pattern = fields.data.get("attention.sliding_window_pattern")
    if not window or (period == 0 and pattern is None):
        if window:
            fields.assume("attention.sliding_window is not used by llama.cpp for this family")
        return [FULL] * count, None
    if isinstance(pattern, list):
        if len(pattern) < count:
            fields.wrong(
                "attention.sliding_window_pattern",
                f"has {len(pattern)} entries for {count} layers",
                "convert the model again",
            )
        return [SLIDING if on else FULL for on in pattern[:count]], window
    step = fields.optional("attention.sliding_window_pattern", high=MAX_LAYERS) or period
    fields.assume(f"one full layer in {step}, as llama.cpp sets it")
    return [SLIDING if (i + 1) % step else FULL for i in range(count)], window


def latent_layers(fields: ArchFields, period: int) -> Reading:
    """DeepSeek 2 and after: MLA where the file has it; older conversions keep ordinary heads (row 2)."""
    shape = _shape(fields)
    k_plain = fields.optional("attention.key_length_mla")
    if k_plain is None:
        fields.assume("the file has no MLA keys: llama.cpp keeps decompressed K and V")
        return attention_only(fields, period)
    rope = fields.size("rope.dimension_count")
    plain = _attention(
        shape,
        0,
        kv_heads=max(shape.query),
        k_dim=k_plain,
        v_dim=fields.size("attention.value_length_mla"),
    )
    mixer = Latent(
        lora_rank=fields.size("attention.kv_lora_rank"),
        rope_dim=rope,
        plain=plain,
        indexer_dim=fields.optional("attention.indexer.key_length"),
    )
    return Reading(
        layers=tuple(Layer(index=i, mixers=(mixer,)) for i in range(shape.layers)),
        draft_layers=_draft_layers(shape, mixer),
        hidden_size=shape.hidden,
        query_heads=max(shape.query),
    )


def delta_hybrid(fields: ArchFields, _: int) -> Reading:
    """Qwen3-Next and Qwen3.5: one full layer in `full_attention_interval`."""
    shape, state = _shape(fields), delta_net_state(fields)
    step = fields.size_or(4, "full_attention_interval", high=MAX_LAYERS)
    layers = tuple(
        Layer(index=i, mixers=(state,) if (i + 1) % step else (_attention(shape, i),))
        for i in range(shape.layers)
    )
    drafts = _draft_layers(shape, _attention(shape, step - 1 if step <= shape.layers else 0))
    return Reading(layers=layers, draft_layers=drafts, hidden_size=shape.hidden, query_heads=max(shape.query))


def _by_heads(fields: ArchFields, state: State, *, skip_ffn: bool = False) -> Reading:
    """Recurrent where a layer has no KV heads; with `skip_ffn` not where the layer is an MLP."""
    shape = _shape(fields)
    ffn = _per_layer(fields, "feed_forward_length", shape.layers, 0) if skip_ffn else [0] * shape.layers
    layers = []
    for i in range(shape.layers):
        if shape.kv[i]:
            mixers: tuple[Mixer, ...] = (_attention(shape, i),)
        else:
            mixers = () if ffn[i] else (state,)
        layers.append(Layer(index=i, mixers=mixers))
    return Reading(layers=tuple(layers), hidden_size=shape.hidden, query_heads=max(*shape.query, 1))


def mamba1_hybrid(fields: ArchFields, _: int) -> Reading:
    return _by_heads(fields, mamba1_state(fields))


def mamba2_hybrid(fields: ArchFields, _: int) -> Reading:
    return _by_heads(fields, mamba2_state(fields))


def nemotron_hybrid(fields: ArchFields, _: int) -> Reading:
    return _by_heads(fields, mamba2_state(fields), skip_ffn=True)


def conv_hybrid(fields: ArchFields, _: int) -> Reading:
    """LFM2: short convolutions of `shortconv.l_cache`."""
    hidden = fields.size("embedding_length")
    rows = fields.size("shortconv.l_cache", low=2, high=64) - 1
    part = StatePart(name="conv", elements=hidden * rows, rows=rows)
    return _by_heads(fields, State(kind="short_conv", parts=(part,), divisors=(hidden,)))


def parallel_hybrid(fields: ArchFields, _: int) -> Reading:
    """Falcon-H1: attention and Mamba-2 in each layer."""
    shape, state = _shape(fields), mamba2_state(fields)
    layers = tuple(Layer(index=i, mixers=(_attention(shape, i), state)) for i in range(shape.layers))
    return Reading(layers=layers, hidden_size=shape.hidden, query_heads=max(shape.query))


def _pure(fields: ArchFields, state: State) -> Reading:
    count, _ = _counts(fields)
    layers = tuple(Layer(index=i, mixers=(state,)) for i in range(count))
    return Reading(layers=layers, hidden_size=fields.size("embedding_length"), query_heads=1)


def pure_mamba1(fields: ArchFields, _: int) -> Reading:
    return _pure(fields, mamba1_state(fields))


def pure_mamba2(fields: ArchFields, _: int) -> Reading:
    return _pure(fields, mamba2_state(fields))


def pure_rwkv(fields: ArchFields, _: int) -> Reading:
    return _pure(fields, rwkv_state(fields))


_PLAIN = (
    "llama mistral3 falcon baichuan gpt2 gptj gptneox mpt starcoder starcoder2 bloom stablelm qwen qwen2 "
    "qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe orion internlm2 minicpm gemma "
    "xverse command-r dbrx olmo olmoe chatglm glm4 glm4moe bitnet jais jais2 nemotron exaone granite "
    "granitemoe bailingmoe bailingmoe2 dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense "
    "smollm3 seed_oss apertus minimax-m2 refact codeshell grok deepseek openelm deci"
)
_VERIFIED = frozenset(("llama", "glm4", "gemma4", "gpt-oss", "deepseek2", "laguna", "qwen35"))
"""Architectures whose printed cache sizes in llama.cpp's logs were reproduced to the digit."""

_SPECIAL: dict[str, tuple[Callable[[ArchFields, int], Reading], int]] = {
    "gemma2": (attention_only, 2),
    "gemma3": (attention_only, 6),
    "gemma3n": (attention_only, 5),
    "gemma4": (attention_only, 6),
    "gpt-oss": (attention_only, 2),
    "cohere2": (attention_only, 4),
    "olmo2": (attention_only, 4),
    "exaone4": (attention_only, 4),
    "exaone-moe": (attention_only, 4),
    "afmoe": (attention_only, 4),
    "llama4": (attention_only, 4),
    "laguna": (attention_only, 4),
    "mimo2": (attention_only, 6),
    "deepseek2": (latent_layers, 0),
    "deepseek32": (latent_layers, 0),
    "glm-dsa": (latent_layers, 0),
    "qwen3next": (delta_hybrid, 0),
    "qwen35": (delta_hybrid, 0),
    "qwen35moe": (delta_hybrid, 0),
    "jamba": (mamba1_hybrid, 0),
    "granitehybrid": (mamba2_hybrid, 0),
    "nemotron_h": (nemotron_hybrid, 0),
    "nemotron_h_moe": (nemotron_hybrid, 0),
    "falcon-h1": (parallel_hybrid, 0),
    "lfm2": (conv_hybrid, 0),
    "lfm2moe": (conv_hybrid, 0),
    "mamba": (pure_mamba1, 0),
    "mamba2": (pure_mamba2, 0),
    "rwkv6": (pure_rwkv, 0),
    "rwkv7": (pure_rwkv, 0),
}

GGUF_FAMILIES: dict[str, GgufFamily] = {
    arch: GgufFamily(read, period, "log" if arch in _VERIFIED else "")
    for arch, (read, period) in (dict.fromkeys(_PLAIN.split(), (attention_only, 0)) | _SPECIAL).items()
}
