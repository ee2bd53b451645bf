"""The structures of `common.h`, field by field."""

from __future__ import annotations

import ctypes

import torch

FORMS = {"fp32": 0, "bf16": 1, "fp16": 2, "fp8": 3, "int8": 4}
"""The numbers of KV formats in `common.h`."""

_whole, _pointer = ctypes.c_int64, ctypes.c_void_p


class CMatrix(ctypes.Structure):
    _fields_ = (("data", _pointer), ("form", _whole), ("rows", _whole), ("columns", _whole))


MATRICES = ("qkv", "out", "gate_up", "down")
VECTORS = (
    "attention_norm",
    "mlp_norm",
    "q_norm",
    "k_norm",
    "after_attention",
    "after_mlp",
    "qkv_bias",
    "out_bias",
    "gate_up_bias",
    "down_bias",
)


class CMemory(ctypes.Structure):
    _fields_ = tuple((name, _pointer) for name in ("keys", "values", "key_scales", "value_scales"))


class CLayer(ctypes.Structure):
    _fields_ = (
        *((name, CMatrix) for name in MATRICES),
        *((name, _pointer) for name in VECTORS),
        *((name, _pointer) for name in ("cos", "sin")),
        ("memory", ctypes.POINTER(CMemory)),
        *((name, _pointer) for name in ("fp8_scale_key", "fp8_scale_value")),
        ("group", _whole),
        ("window", _whole),
    )


class CModel(ctypes.Structure):
    _fields_ = (
        *((n, _whole) for n in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate")),
        *((n, _whole) for n in ("kv_form", "block_size", "gelu", "segment_blocks")),
        ("norm_eps", ctypes.c_double),
        ("layer", ctypes.POINTER(CLayer)),
    )


SCRATCH = ("x", "normed", "qkv", "found", "gate_up", "inner")


class CStep(ctypes.Structure):
    _fields_ = (
        *((n, _whole) for n in ("rows", "spans", "groups", "threads")),
        ("scale_factor", ctypes.c_double),
        *((n, _pointer) for n in ("span", "position", "table", "slot")),
        *((n, _pointer) for n in SCRATCH),
    )


def address(tensor: torch.Tensor) -> int:
    """Where a tensor's numbers lie, which must be without gaps and on the CPU."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("a kernel needs contiguous numbers in host memory")
    return tensor.data_ptr()
