"""Formats of the KV cache: bytes of an element, of scales beside it, of a head's vector.

Two kinds exist. Plain ones have a size per element (`bf16` 2, `fp8` 1), and may keep a scale per token and
head. Block formats (`q8_0`, `nvfp4`) pack a group of elements with its scale, so that an element has a
fractional size and a vector must be whole groups.

Sources: LAYOUTS rows 16-19; ggml's block structs (`ggml-common.h`); vLLM's `kv_cache_interface.py`
(`KVQuantMode`, `nvfp4_kv_cache_full_dim`).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from kvprobe.errors import Problem, UsageError

FP32_BYTES = 4
_DS_MLA_GROUP = 128
"""Elements of the latent vector that share one fp32 scale in `fp8_ds_mla`."""
_DS_MLA_ROPE_BYTES = 2
"""The rope part of `fp8_ds_mla` stays bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVDtype:
    """One format of cached K or V.

    `bytes_per_element` includes the scales of block formats. `scale_bytes_per_head_token` is the scale
    that K alone (or V alone) keeps for each token and head; per-tensor scales cost nothing.
    `group_elements` is the smallest number of elements that the format can hold.
    """

    name: str
    bytes_per_element: Fraction
    scale_bytes_per_head_token: int = 0
    group_elements: int = 1
    source: str = ""

    def vector_bytes(self, elements: int) -> Fraction:
        """Bytes of one head's vector of one token, its scale included.

        Raises UsageError when the vector is no whole number of groups: no engine stores such a cache.
        """
        if self.name == "fp8_ds_mla":
            raise UsageError(
                Problem(
                    code="kv_dtype_layout",
                    message="fp8_ds_mla is a format of MLA latents, and this model keeps K and V heads",
                    fix="use --kv-dtype fp8",
                )
            )
        if elements % self.group_elements:
            raise UsageError(
                Problem(
                    code="kv_dtype_width",
                    message=f"a head of {elements} elements cannot be stored as {self.name}, which packs "
                    f"{self.group_elements} elements at a time",
                    fix="choose another --kv-dtype for this model, such as fp8 or auto",
                )
            )
        return elements * self.bytes_per_element + self.scale_bytes_per_head_token

    def latent_bytes(self, lora_rank: int, rope_dim: int) -> Fraction:
        """Bytes of one token's MLA vector in one layer (LAYOUTS rows 3 and 4)."""
        if self.name == "fp8_ds_mla":
            scales = -(-lora_rank // _DS_MLA_GROUP) * FP32_BYTES
            return Fraction(lora_rank + scales + rope_dim * _DS_MLA_ROPE_BYTES)
        return self.vector_bytes(lora_rank + rope_dim)


def _plain(name: str, size: int, *, scale: int = 0, source: str = "") -> KVDtype:
    return KVDtype(
        name=name, bytes_per_element=Fraction(size), scale_bytes_per_head_token=scale, source=source
    )


def _ggml(name: str, block_bytes: int) -> KVDtype:
    size = Fraction(block_bytes, 32)
    return KVDtype(name=name, bytes_per_element=size, group_elements=32, source="ggml-common.h block struct")


_PER_TOKEN_HEAD = "vLLM AttentionSpec: one fp32 scale a token and head, for K and for V"

_FORMATS: dict[str, KVDtype] = {
    form.name: form
    for form in (
        _plain("fp32", 4),
        _plain("bf16", 2),
        _plain("fp16", 2),
        _plain("fp8", 1, source="scales per tensor"),
        _plain("fp8_e4m3", 1, source="scales per tensor"),
        _plain("fp8_e5m2", 1, source="scales per tensor"),
        _plain("int8", 1, source="scales per tensor"),
        _plain("int8_per_token_head", 1, scale=FP32_BYTES, source=_PER_TOKEN_HEAD),
        _plain("fp8_per_token_head", 1, scale=FP32_BYTES, source=_PER_TOKEN_HEAD),
        _plain("fp8_ds_mla", 1, source="vLLM MLAAttentionSpec: 512 fp8 + 4 fp32 scales + 64 bf16 = 656 B"),
        KVDtype(
            name="nvfp4",
            bytes_per_element=Fraction(9, 16),
            group_elements=16,
            source="n/2 bytes of 4-bit values + n/16 fp8 scales (vLLM nvfp4_kv_cache_full_dim)",
        ),
        _ggml("q8_0", 34),
        _ggml("q5_1", 24),
        _ggml("q5_0", 22),
        _ggml("q4_1", 20),
        _ggml("q4_0", 18),
        _ggml("iq4_nl", 18),
    )
}

_ALIASES = {
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "fp8_inc": "fp8",
}

KV_DTYPE_NAMES: tuple[str, ...] = ("auto", *_FORMATS)
"""What `--kv-dtype` accepts, apart from spellings such as `float16` or `f16`."""


def model_kv_dtype(model_dtype: str) -> KVDtype:
    """The cache format that `auto` means: the model's own dtype (`bfloat16` -> bf16)."""
    name = _ALIASES.get(model_dtype, model_dtype)
    return _FORMATS[name] if name in ("fp32", "bf16", "fp16") else _FORMATS["bf16"]


def kv_dtype(name: str, *, model_dtype: str) -> KVDtype:
    """The format called `name` on a command line of vLLM, SGLang or llama.cpp; `auto` is the model's.

    Raises UsageError for a name that is not known.
    """
    key = name.strip().lower()
    if key == "auto":
        return model_kv_dtype(model_dtype)
    key = _ALIASES.get(key, key)
    if key not in _FORMATS:
        near = get_close_matches(key, KV_DTYPE_NAMES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            Problem(
                code="unknown_kv_dtype",
                message=f"{name!r} is no KV cache format that kvprobe knows",
                fix=f"{hint}known: {', '.join(KV_DTYPE_NAMES)}",
            )
        )
    return _FORMATS[key]


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a recurrent state kept in `dtype` (`float32`, `bfloat16`, `bf16`, ...)."""
    form = _FORMATS.get(_ALIASES.get(dtype, dtype))
    if form is None or form.bytes_per_element.denominator != 1:
        raise UsageError(
            Problem(
                code="unknown_state_dtype",
                message=f"{dtype!r} is no dtype that a recurrent state is kept in",
                fix="use float32, bfloat16 or float16",
            )
        )
    return int(form.bytes_per_element)
