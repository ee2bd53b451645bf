"""Bytes of the weights that a configuration implies: exact for plain checkpoints, a range for quantised ones.

Parameters times the bytes of the checkpoint's dtype. What is quantised, and what the vision part of a
composite model may add, is open: the ends of the range are the least and the most that the file allows. The
headers of a checkpoint are always better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from kvprobe.model.counting.keys import Uncounted
from kvprobe.model.counting.packing import Packing, packing_of
from kvprobe.model.counting.towers import towers_at_most
from kvprobe.model.dtypes import element_bytes
from kvprobe.model.parameters import Count, count_parameters
from kvprobe.model.spec import ModelSpec

_MOST_BYTES = 1 << 50
_BETTER = "counted from the configuration; a checkpoint's headers are exact"


@dataclass(frozen=True, slots=True)
class WeightEstimate:
    """`parameters` of the language model and bytes from `lo` to `hi`; all null with a reason in `note`."""

    parameters: int | None
    bytes_range: tuple[int, int] | None
    note: str
    assumptions: tuple[str, ...] = ()


def estimate_weights(spec: ModelSpec, config: Mapping[str, object]) -> WeightEstimate:
    """What the whole configuration file `config` says about the weights of `spec`. Never raises."""
    try:
        count = count_parameters(spec, config)
    except Uncounted as why:
        return WeightEstimate(None, None, str(why))
    try:
        return _sized(spec, config, count)
    except Uncounted as why:
        return WeightEstimate(count.total, None, str(why))


def _sized(spec: ModelSpec, config: Mapping[str, object], count: Count) -> WeightEstimate:
    element = element_bytes(spec.dtype)
    said: list[str] = []
    packing = _packing(config, spec)
    lo, hi = _plain(count, element) if packing is None else _packed(count, element, packing)
    if count.head_doubtful:
        lo -= Fraction(count.groups["head"] * element)
        said.append("tie_word_embeddings is not in the configuration: with and without a head of its own")
    most = towers_at_most(config, spec.hidden_size)
    if most is None and spec.multimodal:
        raise Uncounted("the vision or audio part is not described in the configuration")
    if most is not None:
        hi += most * element
        said.append(
            f"only the language model's parameters are counted; its vision and audio parts hold at most "
            f"{most:,} more, which is the upper end of the weights"
        )
    if not 0 < lo <= hi <= _MOST_BYTES:
        raise Uncounted("the count is larger than any model")
    form = spec.dtype if packing is None else f"{spec.quantization}, the rest {spec.dtype}"
    note = f"{count.total:,} parameters as {form}: {_BETTER}"
    return WeightEstimate(count.total, (floor(lo), ceil(hi)), note, tuple(said))


def _packing(config: Mapping[str, object], spec: ModelSpec) -> Packing | None:
    for place in (config, spec.raw):
        for key in ("quantization_config", "compression_config"):
            part = place.get(key)
            if isinstance(part, Mapping):
                return packing_of(part)
    if spec.quantization is not None:
        raise Uncounted("the quantisation is not described in the configuration")
    return None


def _plain(count: Count, element: int) -> tuple[Fraction, Fraction]:
    size = Fraction(count.total * element)
    return size, size


def _packed(count: Count, element: int, packing: Packing) -> tuple[Fraction, Fraction]:
    lo = hi = Fraction(0)
    for group, elements in count.groups.items():
        lo += elements * (min(packing.lo, Fraction(element)) if group in packing.groups else element)
        hi += elements * (min(packing.hi, Fraction(element)) if group in packing.sure else element)
    return lo, hi
