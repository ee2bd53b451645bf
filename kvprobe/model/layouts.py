"""What a layer's cache costs: one home for every formula of LAYOUTS section 1.

All bytes are per GPU (one tensor-parallel rank of one pipeline stage). Attention and latent layers cost
bytes per token; recurrent layers cost bytes per request; cross attention costs a constant per request.
Fractions appear only where a format packs elements (`q4_0`, `nvfp4`); sums over whole tokens are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from kvprobe.model.dtypes import FP32_BYTES, KVDtype, element_bytes
from kvprobe.model.spec import Attention, Latent, Layer, Mixer, ModelSpec, State, StatePart
from kvprobe.model.stages import drafts, stage_layers, stage_sizes

__all__ = [
    "Part",
    "attention_bytes_per_token",
    "bytes_at",
    "drafts",
    "early_bytes_per_token",
    "growing_bytes_per_token",
    "heads_per_rank",
    "indexer_bytes",
    "latent_bytes_per_token",
    "layer_bytes_per_token",
    "layer_cross_bytes",
    "layer_state_bytes",
    "layout_name",
    "parts",
    "stage_layers",
    "stage_sizes",
    "state_bytes_per_request",
    "state_part_bytes",
    "tp_problem",
]

_INDEXER_GROUP = 128
"""Elements of the sparse indexer's fp8 key that share one fp32 scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of one request's cache: either bytes per token or constant bytes per request.

    `layers` counts the layers that own it. `window_tokens` bounds the tokens that a sliding or chunked
    part keeps. `bytes` of a state or a cross-attention part is per request.
    """

    name: str
    layers: int
    kind: str
    bytes_per_token: Fraction | None = None
    bytes: int | None = None
    window_tokens: int | None = None

    def bytes_at(self, tokens: int) -> Fraction:
        """Logical bytes of this part for one sequence of `tokens` tokens."""
        if self.bytes_per_token is None:
            return Fraction(self.bytes or 0)
        kept = tokens if self.window_tokens is None else min(tokens, self.window_tokens)
        return self.bytes_per_token * kept


def heads_per_rank(kv_heads: int, tp: int) -> int:
    """KV heads stored on each of `tp` ranks: with fewer heads than ranks, heads are repeated."""
    return max(1, kv_heads // tp)


def tp_problem(spec: ModelSpec, tp: int) -> str | None:
    """Why no engine splits this model over `tp` ranks; null when the split is even."""
    for layer in spec.owning():
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                heads = mixer.kv_heads
                if max(heads, tp) % min(heads, tp):
                    return f"{heads} KV heads (layer {layer.index}) cannot be split evenly over {tp} ranks"
            if isinstance(mixer, State) and any(count % tp for count in mixer.divisors):
                counts = ", ".join(str(count) for count in mixer.divisors)
                return f"state heads {counts} (layer {layer.index}) cannot be split evenly over {tp} ranks"
    return None


def indexer_bytes(indexer_dim: int) -> int:
    """Bytes of one token's indexer key in one layer: fp8 values and a fp32 scale per 128 of them.

    The engines keep the key in fp8 whatever the cache's dtype (vLLM `DeepseekV32IndexerCache`,
    sglang PR 11309): 132 bytes at width 128.
    """
    return indexer_dim + -(-indexer_dim // _INDEXER_GROUP) * FP32_BYTES


def attention_bytes_per_token(attention: Attention, k: KVDtype, v: KVDtype, *, tp: int) -> Fraction:
    """K and V of one token in one layer (rows 1, 2, 16-19), for every kind of attention."""
    heads = heads_per_rank(attention.kv_heads, tp)
    return heads * (k.vector_bytes(attention.k_dim) + v.vector_bytes(attention.v_dim))


def latent_bytes_per_token(latent: Latent, k: KVDtype) -> Fraction:
    """The compressed vector of one token in one layer, on every rank (rows 3 and 4), without the indexer."""
    return k.latent_bytes(latent.lora_rank, latent.rope_dim)


def layer_bytes_per_token(layer: Layer, k: KVDtype, v: KVDtype, *, tp: int) -> Fraction:
    """Bytes that one more token adds to `layer` while its window is not full; 0 for states and cross."""
    return sum((_mixer_bytes_per_token(mixer, k, v, tp=tp) for mixer in layer.mixers), Fraction(0))


def _mixer_bytes_per_token(mixer: Mixer, k: KVDtype, v: KVDtype, *, tp: int) -> Fraction:
    if isinstance(mixer, Latent):
        index = indexer_bytes(mixer.indexer_dim) if mixer.indexer_dim is not None else 0
        return latent_bytes_per_token(mixer, k) + index
    if isinstance(mixer, Attention) and mixer.kind != "cross":
        return attention_bytes_per_token(mixer, k, v, tp=tp)
    return Fraction(0)


def state_part_bytes(
    part: StatePart,
    *,
    tp: int,
    model_dtype: str,
    n_spec: int = 0,
    ssm_dtype: str | None = None,
    conv_dtype: str | None = None,
) -> int:
    """Bytes of one state tensor of one request on one rank; `ssm_dtype` and `conv_dtype` override.

    Speculation of `n_spec` tokens adds as many rows to the conv part (vLLM `MambaSpec` shapes).
    """
    override = ssm_dtype if part.name == "ssm" else conv_dtype
    size = element_bytes(override or part.dtype or model_dtype)
    elements = part.elements_per_rank(tp)
    if part.rows:
        elements = elements / part.rows * (part.rows + n_spec)
    return math.ceil(elements * size)


def layer_state_bytes(
    layer: Layer,
    *,
    tp: int,
    model_dtype: str,
    n_spec: int = 0,
    ssm_dtype: str | None = None,
    conv_dtype: str | None = None,
) -> int:
    """Bytes of `layer`'s recurrent state for one request (rows 10 and 11); 0 when it has none."""
    return sum(
        state_part_bytes(
            part, tp=tp, model_dtype=model_dtype, n_spec=n_spec, ssm_dtype=ssm_dtype, conv_dtype=conv_dtype
        )
        for mixer in layer.mixers
        if isinstance(mixer, State)
        for part in mixer.parts
    )


def layer_cross_bytes(
    layer: Layer, k: KVDtype, v: KVDtype, *, tp: int, encoder_tokens: int | None
) -> Fraction:
    """Bytes of `layer`'s cross-attention cache for one request (row 14): all encoder tokens."""
    per_token = sum(
        (
            attention_bytes_per_token(mixer, k, v, tp=tp)
            for mixer in layer.mixers
            if isinstance(mixer, Attention) and mixer.kind == "cross"
        ),
        Fraction(0),
    )
    return per_token * (encoder_tokens or 0)


_STATE_NAMES = {
    "gated_delta_net": "gated delta net",
    "mamba2": "Mamba-2",
    "mamba1": "Mamba",
    "lightning": "lightning attention",
    "short_conv": "short convolution",
    "rwkv": "RWKV",
    "rg_lru": "gated linear recurrence",
}


def parts(
    spec: ModelSpec,
    k: KVDtype,
    v: KVDtype,
    *,
    tp: int,
    pp: int = 1,
    stage: int = 0,
    draft_layers: int = 0,
    n_spec: int = 0,
    ssm_dtype: str | None = None,
    conv_dtype: str | None = None,
) -> list[Part]:
    """The cache of one request on one GPU, like layers together; the sum of the parts is the whole."""
    if spec.affine is not None:
        return _affine_parts(spec)
    found: dict[tuple[str, str, int | None], Part] = {}
    for layer in stage_layers(spec, pp=pp, stage=stage, draft_layers=draft_layers):
        if not layer.owns_cache:
            continue
        for mixer in layer.mixers:
            for part in _mixer_parts(mixer, spec, k, v, tp, n_spec, ssm_dtype, conv_dtype):
                _add(found, part)
    return list(found.values())


def _add(found: dict[tuple[str, str, int | None], Part], part: Part) -> None:
    key = (part.name, part.kind, part.window_tokens)
    old = found.get(key)
    if old is None:
        found[key] = part
        return
    grown = None if part.bytes_per_token is None else part.bytes_per_token + (old.bytes_per_token or 0)
    fixed = None if part.bytes is None else part.bytes + (old.bytes or 0)
    found[key] = replace(old, layers=old.layers + part.layers, bytes_per_token=grown, bytes=fixed)


def _mixer_parts(
    mixer: Mixer,
    spec: ModelSpec,
    k: KVDtype,
    v: KVDtype,
    tp: int,
    n_spec: int,
    ssm_dtype: str | None,
    conv_dtype: str | None,
) -> Iterable[Part]:
    if isinstance(mixer, Latent):
        yield Part(name="MLA latent", layers=1, kind="mla", bytes_per_token=latent_bytes_per_token(mixer, k))
        if mixer.indexer_dim is not None:
            size = Fraction(indexer_bytes(mixer.indexer_dim))
            yield Part(name="sparse indexer keys", layers=1, kind="indexer", bytes_per_token=size)
    elif isinstance(mixer, Attention):
        yield _attention_part(mixer, attention_bytes_per_token(mixer, k, v, tp=tp), spec.encoder_tokens)
    else:
        for part in mixer.parts:
            size_bytes = state_part_bytes(
                part,
                tp=tp,
                model_dtype=spec.dtype,
                n_spec=n_spec,
                ssm_dtype=ssm_dtype,
                conv_dtype=conv_dtype,
            )
            name = f"{_STATE_NAMES[mixer.kind]} {part.name} state"
            yield Part(name=name, layers=1, kind=mixer.kind, bytes=size_bytes)


def _attention_part(mixer: Attention, per_token: Fraction, encoder_tokens: int | None) -> Part:
    if mixer.kind == "cross":
        fixed = math.ceil(per_token * (encoder_tokens or 0))
        return Part(name="cross attention", layers=1, kind="cross", bytes=fixed)
    name = {"full": "full attention", "sliding": "sliding window", "chunked": "chunked attention"}[mixer.kind]
    return Part(
        name=name, layers=1, kind=mixer.kind, bytes_per_token=per_token, window_tokens=mixer.window_tokens
    )


def _affine_parts(spec: ModelSpec) -> list[Part]:
    affine = spec.affine
    if affine is None:
        return []
    count = len(spec.layers)
    return [
        Part(
            name="compressed rows",
            layers=count,
            kind="affine",
            bytes_per_token=Fraction(affine.per_token_bytes),
        ),
        Part(
            name="windows and compressor state", layers=count, kind="affine_fixed", bytes=affine.fixed_bytes
        ),
    ]


def bytes_at(
    spec: ModelSpec,
    tokens: int,
    k: KVDtype,
    v: KVDtype,
    *,
    tp: int = 1,
    pp: int = 1,
    stage: int = 0,
    draft_layers: int = 0,
    n_spec: int = 0,
    ssm_dtype: str | None = None,
    conv_dtype: str | None = None,
) -> int:
    """Logical bytes of one sequence of `tokens` tokens on one GPU: no blocks, no padding, no reservation."""
    found = parts(
        spec,
        k,
        v,
        tp=tp,
        pp=pp,
        stage=stage,
        draft_layers=draft_layers,
        n_spec=n_spec,
        ssm_dtype=ssm_dtype,
        conv_dtype=conv_dtype,
    )
    return math.ceil(sum((part.bytes_at(tokens) for part in found), Fraction(0)))


def growing_bytes_per_token(found: Iterable[Part]) -> Fraction:
    """Bytes that one more token adds for ever, past every window (LAYOUTS: the marginal cost)."""
    return sum((p.bytes_per_token or Fraction(0) for p in found if p.window_tokens is None), Fraction(0))


def early_bytes_per_token(found: Iterable[Part]) -> Fraction:
    """Bytes that one more token adds while no window is full yet: all layers that keep tokens."""
    return sum((p.bytes_per_token or Fraction(0) for p in found), Fraction(0))


def state_bytes_per_request(found: Iterable[Part]) -> int:
    """Constant bytes of one request: recurrent states and cross attention."""
    return sum(p.bytes or 0 for p in found)


def layout_name(spec: ModelSpec) -> str:
    """The layout's name in `plan --json` (CLI.md)."""
    if spec.affine is not None:
        return "affine"
    mixers = [mixer for layer in spec.owning() for mixer in layer.mixers]
    states = {mixer.kind for mixer in mixers if isinstance(mixer, State)}
    if states:
        return "mamba_full" if states & {"mamba2", "mamba1"} else "linear_full"
    latents = [mixer for mixer in mixers if isinstance(mixer, Latent)]
    if latents:
        return "mla_indexer" if any(m.indexer_dim is not None for m in latents) else "mla"
    return _attention_layout(spec, [mixer for mixer in mixers if isinstance(mixer, Attention)])


def _attention_layout(spec: ModelSpec, attentions: list[Attention]) -> str:
    kinds = {a.kind for a in attentions}
    if "cross" in kinds:
        return "cross"
    if any(layer.shares_with is not None for layer in spec.layers):
        return "shared"
    if "chunked" in kinds:
        return "chunked"
    if kinds == {"sliding"}:
        return "sliding"
    if "sliding" in kinds:
        return "full_sliding"
    shapes = {(a.kv_heads, a.k_dim, a.v_dim) for a in attentions}
    return "varying" if len(shapes) > 1 or len(spec.owning()) < len(spec.layers) else "full"
