"""A model and its options as one engine really caches them: what a backend turns into something else.

The bytes of a token are not the model's alone. Some engines keep K and V of an MLA model decompressed, some
pack its fp8 cache with scales, llama.cpp's `auto` is f16, and speculation brings the model's own draft layer.
`as_cached` says it once, for the logical cost (`kv`) and for the pool alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvprobe.model.spec import Attention, Latent, Layer, Mixer, ModelSpec
from kvprobe.plan.engines.versions import Version, has, parse_version, since
from kvprobe.plan.pool import EngineOptions

_FP8 = ("fp8", "fp8_e4m3")
_HOPPER = ("h100", "h200", "h20", "h800", "gh200")
_PADDED_HEAD = 256
"""vLLM before MLA was kept compressed: DeepSeek's heads of 192 padded to this, K and V (`get_head_size`)."""
_OLD_FILES = ("deepseek_v2",)
"""Families whose GGUF files in circulation were made before llama.cpp kept the latent vector."""
_LLAMA_CPP_FULL = (
    *("mistral", "ministral", "mixtral", "phi3", "phimoe", "phi4_multimodal", "phi4mm", "phi3_v"),
    *("starcoder2", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3", "dots1", "gpt_neo"),
)
"""Families whose windows llama.cpp does not use: it switched Phi's off (PR 13676), and its `llama`, `qwen`
and `starcoder2` architectures, which the others are converted to, have none."""
_ONE_DRAFT_LAYER = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "glm_moe_dsa",
)
"""Families that ship one MTP layer, whatever the number of tokens that it drafts."""


@dataclass(frozen=True, slots=True)
class Cached:
    """The model and the options to compute with, and what was changed, for the user."""

    spec: ModelSpec
    options: EngineOptions
    notes: tuple[str, ...] = ()


def as_cached(engine: str, version: str | None, spec: ModelSpec, options: EngineOptions) -> Cached:
    """What `engine` of that version caches when it is asked for these options. Idempotent."""
    found = Cached(spec, options)
    understood = parse_version(engine, version)
    for step in (_drafts, _formats, _windows, _sparse_fp8, _plain_heads):
        found = step(found, understood)
    return found


def _drafts(found: Cached, version: Version) -> Cached:
    """The draft layers that speculation uses when nobody counted them: the model's own MTP.

    SGLang gives its draft a pool of its own, which it neither prints nor plans with the target's.
    """
    options = found.options
    if options.draft_layers or not options.speculative_tokens or version.engine == "sglang":
        return found
    own = len(found.spec.draft_layers) or (1 if found.spec.family in _ONE_DRAFT_LAYER else 0)
    if not own:
        return found
    note = f"{own} draft layer (MTP), as the model ships it"
    return Cached(found.spec, replace(options, draft_layers=own), (*found.notes, note))


def _formats(found: Cached, version: Version) -> Cached:
    """llama.cpp's caches are f16 unless it is told otherwise, whatever the model's dtype."""
    if version.engine != "llama.cpp":
        return found
    k, v = ("fp16" if n == "auto" else n for n in (found.options.kv_dtype_k, found.options.kv_dtype_v))
    return replace(found, options=replace(found.options, kv_dtype_k=k, kv_dtype_v=v))


def _windows(found: Cached, version: Version) -> Cached:
    """llama.cpp keeps all tokens in families whose window it does not use."""
    known = version.engine == "llama.cpp" and found.spec.family in _LLAMA_CPP_FULL
    if not known or not windows_of(found.spec):
        return found

    def full(mixer: Mixer) -> Mixer:
        if isinstance(mixer, Attention) and mixer.window_tokens:
            return replace(mixer, kind="full", window_tokens=None)
        return mixer

    note = "llama.cpp does not use this family's sliding window: all layers keep all tokens"
    return Cached(_mapped(found.spec, full), found.options, (*found.notes, note))


def _sparse_fp8(found: Cached, version: Version) -> Cached:
    """fp8 of a sparse MLA model (DeepSeek V3.2) has scales and a bf16 rope part where FlashMLA reads it."""
    options = found.options
    sparse = any(latent.indexer_dim is not None for latent in _latents(found.spec))
    if not sparse or options.kv_dtype_k not in _FP8 or version.engine not in ("vllm", "sglang"):
        return found
    gpu = (options.gpu_name or "").lower()
    if version.engine == "sglang":
        packed, note = True, "except with trtllm kernels"
    else:
        packed = has(version, "ds_mla") or any(card in gpu for card in _HOPPER)
        note = "as FlashMLA reads it; FlashInfer on Blackwell keeps it plain"
    if not packed:
        note = "fp8 of this sparse MLA model is kept plain; FlashMLA (Hopper) would take fp8_ds_mla"
        return replace(found, notes=(*found.notes, note))
    return Cached(
        found.spec,
        replace(options, kv_dtype_k="fp8_ds_mla", kv_dtype_v="fp8_ds_mla"),
        (*found.notes, f"fp8 of this sparse MLA model takes 656 bytes a layer and token, {note}"),
    )


def _plain_heads(found: Cached, version: Version) -> Cached:
    """MLA decompressed into ordinary heads, where this engine does not keep the latent vector."""
    if not _latents(found.spec):
        return found
    asked = found.options.latent_cache
    if version.engine == "llama.cpp":
        old = found.spec.family in _OLD_FILES or not since(version, "mla")
        if asked is True or (asked is None and not old):
            return found
        note = (
            "the model file keeps K and V of every head, as those made before April 2025 do; "
            "newer files keep the latent vector alone"
        )
        return _decompressed(found, None, note)
    if version.engine == "vllm" and not has(version, "mla"):
        return _decompressed(found, _PADDED_HEAD, "this vLLM decompresses MLA and pads its heads to 256")
    return _decompressed(found, None, "MLA is kept decompressed") if asked is False else found


def _latents(spec: ModelSpec) -> list[Latent]:
    layers = (*spec.layers, *spec.draft_layers)
    return [mixer for layer in layers for mixer in layer.mixers if isinstance(mixer, Latent)]


def _decompressed(found: Cached, width: int | None, note: str) -> Cached:
    def plain(mixer: Mixer) -> Mixer:
        if not isinstance(mixer, Latent):
            return mixer
        return mixer.plain if width is None else replace(mixer.plain, k_dim=width, v_dim=width)

    return Cached(_mapped(found.spec, plain), found.options, (*found.notes, note))


def _mapped(spec: ModelSpec, change: Callable[[Mixer], Mixer]) -> ModelSpec:
    """The model with every mixer of its layers, and of its draft's, changed."""

    def changed(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return tuple(replace(layer, mixers=tuple(map(change, layer.mixers))) for layer in layers)

    return replace(spec, layers=changed(spec.layers), draft_layers=changed(spec.draft_layers))


def windows_of(spec: ModelSpec) -> set[int]:
    """The windows and chunks of a model's layers."""
    mixers = (mixer for layer in spec.owning() for mixer in layer.mixers)
    return {mixer.window_tokens for mixer in mixers if isinstance(mixer, Attention) and mixer.window_tokens}
