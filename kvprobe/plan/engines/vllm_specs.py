"""vLLM V1: what one layer keeps in one block, and how many blocks of it a request holds.

Every layer with a cache of its own has a `CacheSpec`: the tokens and the bytes of one block (its page).
Read in `vllm/v1/kv_cache_interface.py` of the wheels 0.8.0 to 0.33.0; boundaries are in `versions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from kvprobe.model.layouts import (
    attention_bytes_per_token,
    indexer_bytes,
    latent_bytes_per_token,
    state_part_bytes,
)
from kvprobe.model.spec import Attention, Latent, Layer, Mixer, State
from kvprobe.plan.engines.arithmetic import ceil_div, whole_bytes
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.engines.versions import Release, has

Kind = Literal["full", "cross", "sliding", "chunked", "state"]
KINDS: tuple[Kind, ...] = ("full", "cross", "sliding", "chunked", "state")
"""In the order in which the planner prints groups."""

DEFAULT_BLOCK_TOKENS = 16
LATENT_BLOCK_TOKENS = 64
"""FlashMLA's block; CUTLASS MLA takes 128, Triton 16 (FACTS f)."""
_DEFAULT_CHUNK_TOKENS = 2048
"""Mamba's chunk where the configuration names none (`get_mamba_chunk_size`)."""

_FLOAT32_STATES: dict[str, Release] = {
    "qwen3_5_text": (0, 0, 0),
    "qwen3_5_moe_text": (0, 0, 0),
    "kimi_linear": (0, 0, 0),
    "nemotron_h": (0, 13, 0),
}
"""Families whose states this vLLM keeps as the configuration says, else float32 (its `models/config.py`);
before that version, and in all other families, states have the model's dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """One layer's block: `block_size` tokens in `page_bytes` bytes. `shape` is what must agree too."""

    kind: Kind
    block_size: int
    page_bytes: int
    shape: tuple[str | int, ...] = ()
    window_tokens: int | None = None

    @property
    def latent(self) -> bool:
        return self.shape[:1] == ("latent",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How many blocks of a layer one request holds, by kind (`max_memory_usage_bytes` of the specs)."""

    in_flight_tokens: int
    encoder_tokens: int
    state_mode: str
    state_extra: int
    """Blocks for the states of speculated tokens."""
    all_adds_extra: bool

    def blocks(self, spec: CacheSpec, tokens: int) -> int:
        """Blocks of a request of `tokens` tokens in one layer of this kind."""
        block = spec.block_size
        window = spec.window_tokens or 0
        if spec.kind == "full":
            return ceil_div(tokens, block)
        if spec.kind == "sliding":
            # One block more, for the window may start inside a block.
            return ceil_div(min(window - 1 + self.in_flight_tokens, tokens), block) + 1
        if spec.kind == "chunked":
            return ceil_div(min(window + self.in_flight_tokens, tokens), block)
        if spec.kind == "cross":
            return ceil_div(self.encoder_tokens, block)
        if self.state_mode == "all":
            return ceil_div(tokens, block) + (self.state_extra if self.all_adds_extra else 0)
        return (2 if self.state_mode == "align" else 1) + self.state_extra


def state_mode(setting: Setting) -> str:
    """The mamba cache mode that this version runs in: `none`, `align` or `all`."""
    options, version = setting.options, setting.version
    if options.mamba_cache_mode is not None and options.prefix_caching is not False:
        return options.mamba_cache_mode
    mixers = [mixer for layer in setting.layers() for mixer in layer.mixers]
    caching = options.prefix_caching
    if caching is None:
        # On by default for hybrids in newer versions, for models of states alone in none.
        caching = has(version, "hybrid_prefix") and not all(isinstance(mixer, State) for mixer in mixers)
    if not caching or not has(version, "mamba_prefix_blocks"):
        return "none"
    kinds = {mixer.kind for mixer in mixers if isinstance(mixer, State)}
    if has(version, "mamba_all_default") and kinds <= {"mamba1", "mamba2"}:
        return "all"
    return "align" if has(version, "mamba_modes") else "none"


def rules(setting: Setting, in_flight_tokens: int) -> Rules:
    """The rules of this version and these options."""
    version = setting.version
    counted = setting.options.speculative_tokens if has(version, "mamba_modes") else 0
    return Rules(
        in_flight_tokens=in_flight_tokens,
        encoder_tokens=setting.spec.encoder_tokens or 0,
        state_mode=state_mode(setting),
        state_extra=counted,
        all_adds_extra=has(version, "mamba_all_adds_spec"),
    )


def layer_specs(setting: Setting) -> tuple[tuple[CacheSpec, ...], ...]:
    """The specs of each pipeline stage's layers, with the blocks of attention and states aligned."""
    stages = setting.stages()
    mixers = [mixer for layer in setting.layers() for mixer in layer.mixers]
    block = _attention_block(mixers, setting)
    state_block = block if state_mode(setting) != "none" else setting.max_model_len or block
    page = max((_token_bytes(mixer, setting) * block for mixer in mixers), default=Fraction(0))

    def of_layer(layer: Layer) -> Iterator[CacheSpec]:
        for mixer in layer.mixers:
            yield from _specs(mixer, setting, block, state_block, whole_bytes(page))

    return tuple(tuple(spec for layer in stage for spec in of_layer(layer)) for stage in stages)


def _token_bytes(mixer: Mixer, setting: Setting) -> Fraction:
    """Bytes of one token in one layer of the main cache (not of the indexer); 0 for states."""
    if isinstance(mixer, Latent):
        return latent_bytes_per_token(mixer, setting.k)
    if isinstance(mixer, Attention):
        return attention_bytes_per_token(mixer, setting.k, setting.v, tp=setting.options.tp)
    return Fraction(0)


def _state_bytes(state: State, setting: Setting) -> int:
    options = setting.options
    return sum(
        state_part_bytes(
            part,
            tp=options.tp,
            model_dtype=setting.spec.dtype,
            n_spec=options.speculative_tokens,
            ssm_dtype=_ssm_dtype(setting),
        )
        for part in state.parts
    )


def _ssm_dtype(setting: Setting) -> str | None:
    """The dtype of recurrent states: the model's own (`mamba_ssm_cache_dtype=auto`), with exceptions."""
    since = _FLOAT32_STATES.get(setting.spec.family)
    honoured = since is not None and setting.version.release >= since
    return None if honoured else setting.spec.dtype


def _attention_block(mixers: list[Mixer], setting: Setting) -> int:
    """Tokens of an attention block; grown in hybrids until it holds a state."""
    latent = any(isinstance(mixer, Latent) for mixer in mixers)
    token_bytes = max((_token_bytes(mixer, setting) for mixer in mixers), default=Fraction(0))
    state_bytes = max((_state_bytes(m, setting) for m in mixers if isinstance(m, State)), default=0)
    asked = setting.options.block_size
    base = asked or (LATENT_BLOCK_TOKENS if latent else DEFAULT_BLOCK_TOKENS)
    if not token_bytes or not state_bytes:
        return base
    unit = _alignment(latent, asked, setting)
    if state_mode(setting) == "all" and has(setting.version, "mamba_prefix_blocks"):
        unit = math.lcm(_chunk_tokens(setting), unit)
    grown = unit * math.ceil(Fraction(state_bytes) / (unit * token_bytes))
    return max(grown, asked or 0)


def _alignment(latent: bool, asked: int | None, setting: Setting) -> int:
    version = setting.version
    unit = DEFAULT_BLOCK_TOKENS
    if latent and has(version, "mla_align_64"):
        unit = 128 if has(version, "mla_align_128") else 64
    return max(unit, asked or 0) if has(version, "align_to_block") else unit


def _chunk_tokens(setting: Setting) -> int:
    raw = setting.spec.raw
    for source in (raw.get("text_config"), raw):
        if isinstance(source, dict):
            for name in ("mamba_chunk_size", "chunk_size"):
                chunk = source.get(name)
                if isinstance(chunk, int) and chunk > 0:
                    return chunk
    return _DEFAULT_CHUNK_TOKENS


def _specs(
    mixer: Mixer, setting: Setting, block: int, state_block: int, attention_page_bytes: int
) -> Iterator[CacheSpec]:
    if isinstance(mixer, State):
        # A state is padded to the page of an attention block: all pages of a pool are of one size.
        size = _state_bytes(mixer, setting)
        yield CacheSpec(
            kind="state", block_size=state_block, page_bytes=max(size, attention_page_bytes), shape=(size,)
        )
        return
    page = whole_bytes(_token_bytes(mixer, setting) * block)
    if isinstance(mixer, Latent):
        shape = ("latent", mixer.lora_rank, mixer.rope_dim)
        yield CacheSpec(kind="full", block_size=block, page_bytes=page, shape=shape)
        if mixer.indexer_dim is not None:
            index = indexer_bytes(mixer.indexer_dim) * block
            yield CacheSpec(kind="full", block_size=block, page_bytes=index, shape=("latent", "indexer"))
        return
    yield CacheSpec(
        kind=mixer.kind,
        block_size=block,
        page_bytes=page,
        shape=(mixer.kv_heads, mixer.k_dim, mixer.v_dim),
        window_tokens=mixer.window_tokens,
    )


def promoted(spec: CacheSpec) -> CacheSpec:
    """A local layer allocated like a full one (no hybrid manager)."""
    if spec.kind in ("sliding", "chunked"):
        return replace(spec, kind="full", window_tokens=None)
    return spec
