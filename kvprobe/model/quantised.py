"""Naming the weight format of a quantised model from its configuration."""

from __future__ import annotations

from collections.abc import Mapping


def quantization_name(config: Mapping[str, object]) -> str | None:
    """The weight format that a config.json states (`awq 4-bit`, `fp8`, ...); null when it states none.

    Reads `quantization_config` (GPTQ, AWQ, fp8, bitsandbytes, compressed-tensors, modelopt, mxfp4) and the
    older `compression_config`. This is the format of weights; the cache keeps its own dtype.
    """
    for key in ("quantization_config", "compression_config"):
        part = config.get(key)
        if isinstance(part, dict):
            return _method(part)
    return None


def _method(part: Mapping[str, object]) -> str:
    method = part.get("quant_method")
    name = method[:40] if isinstance(method, str) else "quantised"
    if name == "modelopt" and isinstance(part.get("quant_algo"), str):
        return f"modelopt {str(part['quant_algo'])[:20].lower()}"
    if name == "bitsandbytes":
        return "bitsandbytes 4-bit" if part.get("load_in_4bit") is True else "bitsandbytes 8-bit"
    if name == "compressed-tensors" and isinstance(part.get("format"), str):
        return f"compressed-tensors {str(part['format'])[:40]}"
    bits = part.get("bits", part.get("w_bit"))
    if isinstance(bits, int) and not isinstance(bits, bool) and 0 < bits <= 16:
        return f"{name} {bits}-bit"
    return name


def kv_cache_scheme(config: Mapping[str, object]) -> str | None:
    """The cache format that a quantised checkpoint asks for; null when it asks for none."""
    part = config.get("quantization_config")
    if not isinstance(part, dict):
        return None
    scheme, algorithm = part.get("kv_cache_scheme"), part.get("kv_cache_quant_algo")
    if isinstance(algorithm, str) and algorithm:
        return algorithm[:20].lower()
    if isinstance(scheme, dict):
        bits = scheme.get("num_bits")
        return "fp8" if bits == 8 and scheme.get("type") == "float" else f"{str(bits)[:4]}-bit"
    return None
