"""What a quantised checkpoint stores per weight, as its `quantization_config` says: a range.

Formats: GPTQ and AWQ pack `bits` per weight and keep a 16-bit scale and a packed zero point per group; fp8
keeps one byte and a scale per tensor, channel or block; bitsandbytes 4-bit keeps an absmax per 64 weights
(float32, or about a quarter of it when quantised again); mxfp4 keeps a byte per 32 weights, nvfp4 one per 16;
compressed-tensors states bits and group per target. Which linear layers were left as they are stands in lists
of names and patterns: a list that names more than the usual (head, router, vision) widens the range, it is
not resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from kvprobe.model.counting.keys import Group, Uncounted
from kvprobe.model.fields import shown

_LINEAR: tuple[Group, ...] = ("attention", "state", "mlp", "experts", "shared")
_LISTS = (
    "ignore",
    "modules_to_not_convert",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
    "dynamic",
)
_WORDS: tuple[tuple[str, tuple[Group, ...]], ...] = (
    ("lm_head", ()),
    ("embed", ()),
    ("router", ()),
    ("norm", ()),
    ("visual", ()),
    ("vision", ()),
    ("multi_modal", ()),
    ("mm_projector", ()),
    ("audio", ()),
    ("mlp1", ()),
    ("mtp", ()),
    ("eh_proj", ()),
    ("shared_expert", ("shared",)),
    ("shared_mlp", ("shared", "mlp")),
    ("expert", ("experts",)),
    ("self_attn", ("attention",)),
    ("attention", ("attention",)),
    ("attn", ("attention", "state")),
    ("mamba", ("state",)),
    ("conv", ("state",)),
)


@dataclass(frozen=True, slots=True)
class Packing:
    """Bytes per quantised weight, from `lo` to `hi`; `groups` may be quantised, `sure` certainly are."""

    lo: Fraction
    hi: Fraction
    groups: frozenset[Group]
    sure: frozenset[Group]


def packing_of(quantization: Mapping[str, object]) -> Packing:
    """Raises Uncounted for a format whose size per weight is not known."""
    method = quantization.get("quant_method")
    name = method.lower() if isinstance(method, str) else ""
    sizes = _sizes(name, quantization)
    kept = _kept(quantization)
    groups: set[Group] = {"experts"} if name == "mxfp4" else set(_LINEAR)
    sure = groups - kept
    if quantization.get("lm_head") is True:
        groups.add("head")
        sure.add("head")
    elif name in ("compressed-tensors", "modelopt") and not _names(quantization, "lm_head"):
        groups.add("head")
    return Packing(*sizes, groups=frozenset(groups), sure=frozenset(sure))


def _sizes(name: str, part: Mapping[str, object]) -> tuple[Fraction, Fraction]:
    if name in ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round", "autoround"):
        return _grouped(_bits(part, "bits", "w_bit"), part.get("group_size", part.get("q_group_size")))
    if name in ("fp8", "fbgemm_fp8", "finegrained_fp8"):
        return Fraction(1), Fraction(1) + _scales(part.get("weight_block_size"))
    if name == "mxfp4":
        return Fraction(17, 32), Fraction(17, 32)
    if name == "bitsandbytes":
        if part.get("load_in_4bit") is True or part.get("_load_in_4bit") is True:
            return Fraction(1, 2) + Fraction(1, 64), Fraction(1, 2) + Fraction(4, 64)
        return Fraction(1), Fraction(1) + Fraction(1, 128)
    if name == "modelopt":
        return _modelopt(part)
    if name == "compressed-tensors":
        return _compressed(part)
    raise Uncounted(f"the size of weights quantised by {shown(part.get('quant_method'))} is not known")


def _bits(part: Mapping[str, object], *names: str) -> int:
    for name in names:
        value = part.get(name)
        if type(value) is int and 1 <= value <= 16:
            return value
    raise Uncounted(f"`{names[0]}` of the quantisation is missing")


def _grouped(bits: int, group: object) -> tuple[Fraction, Fraction]:
    """Packed integers, and per group a 16-bit scale and a zero point as wide as a weight, or none."""
    plain = Fraction(bits, 8)
    if type(group) is int and 8 <= group <= 1 << 20:
        return plain + Fraction(2, group), plain + (2 + plain) / group + Fraction(1, 256)
    # -1: a scale per output channel, of at least 256 weights.
    return plain, plain + (2 + plain) / 256


def _scales(block: object) -> Fraction:
    """float32 scales of fp8: per block where its size is given, else per channel at most."""
    if isinstance(block, list) and len(block) == 2 and all(type(x) is int and x > 0 for x in block):
        return Fraction(4, block[0] * block[1]) * Fraction(5, 4)
    return Fraction(4, 256)


def _modelopt(part: Mapping[str, object]) -> tuple[Fraction, Fraction]:
    algorithm = str(part.get("quant_algo", "")).upper()
    if "NVFP4" in algorithm or "W4A16_NVFP4" in algorithm:
        return Fraction(9, 16), Fraction(9, 16) + Fraction(1, 512)
    if algorithm.startswith("FP8"):
        return Fraction(1), Fraction(1) + Fraction(4, 256)
    raise Uncounted(f"the size of weights quantised by modelopt {shown(part.get('quant_algo'))} is not known")


def _compressed(part: Mapping[str, object]) -> tuple[Fraction, Fraction]:
    groups = part.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise Uncounted("`config_groups` of the quantisation is missing")
    found = []
    for entry in groups.values():
        weights = entry.get("weights") if isinstance(entry, Mapping) else None
        if not isinstance(weights, Mapping):
            raise Uncounted("a group of the quantisation states no weights")
        bits = _bits(weights, "num_bits")
        if weights.get("type") == "float" and bits == 4:
            found.append((Fraction(17, 32), Fraction(9, 16) + Fraction(1, 512)))
        elif weights.get("type") == "float":
            found.append((Fraction(bits, 8), Fraction(bits, 8) + Fraction(4, 256)))
        else:
            found.append(_grouped(bits, weights.get("group_size")))
    return min(lo for lo, _ in found), max(hi for _, hi in found)


def _entries(part: Mapping[str, object]) -> Iterable[str]:
    for key in _LISTS:
        value = part.get(key)
        names = value.keys() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        yield from (name.lower()[:200] for name in names if isinstance(name, str))


def _names(part: Mapping[str, object], word: str) -> bool:
    return any(word in name for name in _entries(part))


def _kept(part: Mapping[str, object]) -> set[Group]:
    """Groups of which some layers may have been left as they are."""
    kept: set[Group] = set()
    for name in _entries(part):
        known = next((groups for word, groups in _WORDS if word in name), None)
        if known is None and name.endswith((".gate", "mlp.gate*", "_gate", "gate$")):
            known = ()
        kept |= set(_LINEAR) if known is None else set(known)
    return kept
