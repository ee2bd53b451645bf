"""In which form K and V are kept.

Bytes follow from the form alone; the weights have a form of their own. `fp8` is e4m3 with one scale
for the whole tensor, which costs no bytes a token; `int8` keeps one fp32 scale for each token and KV
head, for K and for V.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FP8_LARGEST = 448.0
"""Largest finite number of float8 e4m3 (OCP 8-bit floating point specification, table 2)."""

INT8_LARGEST = 127.0


@dataclass(frozen=True, slots=True)
class KVFormat:
    """One form. `scale_bytes` are those of one token's vector of one head, for K and again for V."""

    name: str
    dtype: torch.dtype
    scale_bytes: int = 0

    @property
    def bytes_per_element(self) -> int:
        return self.dtype.itemsize

    @property
    def quantised(self) -> bool:
        """Numbers are stored as multiples of a scale."""
        return self.bytes_per_element == 1

    def bytes_per_token(self, *, layers: int, kv_heads: int, head_dim: int) -> int:
        """K and V of all layers, scales included."""
        return 2 * layers * kv_heads * (head_dim * self.bytes_per_element + self.scale_bytes)


KV_FORMATS = {
    form.name: form
    for form in (
        KVFormat("fp32", torch.float32),
        KVFormat("bf16", torch.bfloat16),
        KVFormat("fp16", torch.float16),
        KVFormat("fp8", torch.float8_e4m3fn),
        KVFormat("int8", torch.int8, scale_bytes=4),
    )
}

FP32 = KV_FORMATS["fp32"]


def kv_format(name: str) -> KVFormat:
    """`auto` is fp32: what attention computes in."""
    return FP32 if name == "auto" else KV_FORMATS[name]


def to_int8(vectors: torch.Tensor, factor: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """`[.., head_dim]` as int8 and the scale of each vector, its largest magnitude / 127, times `factor`."""
    scale = vectors.abs().amax(dim=-1) * (factor / INT8_LARGEST)
    # A vector of zeros has scale 0; it is divided by 1 and stays zero.
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    whole = (vectors / divisor[..., None]).round_().clamp_(-INT8_LARGEST, INT8_LARGEST)
    return whole.to(torch.int8), scale


def to_fp8(vectors: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """e4m3 of `vectors / scale`; what is beyond its range becomes its largest number, never NaN."""
    return (vectors / scale).clamp_(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)
