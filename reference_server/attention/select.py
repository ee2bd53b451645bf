"""Which attention backend serves."""

from __future__ import annotations

import importlib.util
from typing import Any

from reference_server.attention.backend import AttentionBackend
from reference_server.attention.formats import kv_format
from reference_server.attention.sdpa import SdpaAttention
from reference_server.attention.segments import SegmentedStore, SegmentShape
from reference_server.attention.store import KVStore
from reference_server.config import ServerConfig
from reference_server.errors import ConfigError
from reference_server.models.shape import LlamaConfig
from reference_server.native.attention import MOST_DIM, NativeAttention
from reference_server.native.library import library


def make_attention(
    config: ServerConfig,
    shape: LlamaConfig,
    num_blocks: int,
    *,
    scale_factor: float = 1.0,
    segments: SegmentShape | None = None,
) -> AttentionBackend[Any]:
    """The backend that `--attention` names, with its memory of `num_blocks` blocks.

    With `segments`, memory comes in segments, of which none is there at first (`num_blocks` is ignored).

    Raises `ConfigError` when it cannot serve here, and RuntimeError when there is no memory.
    `scale_factor` multiplies the scales of a quantised cache; 1 is right.
    """
    backend = _choose(config, shape, in_segments=segments is not None)
    form: dict[str, Any] = {
        "layers": shape.block_layers,
        "kv_heads": shape.kv_heads,
        "block_size": config.slot_block_size,
        "head_dim": shape.head_dim,
        "form": kv_format(config.kv_dtype),
        "device": config.device,
        "head_major": backend != "varlen",
        "scale_factor": scale_factor,
    }
    store = SegmentedStore(segments=segments, **form) if segments else KVStore(num_blocks=num_blocks, **form)
    if backend == "native":
        kernels = library()
        assert kernels is not None
        return NativeAttention(shape, store, kernels)
    if backend == "sdpa":
        return SdpaAttention(shape, store)
    # torch.nn.attention.varlen and triton are not everywhere.
    from reference_server.attention.paged import TritonAttention, VarlenAttention

    return TritonAttention(shape, store) if backend == "triton" else VarlenAttention(shape, store)


def _choose(config: ServerConfig, shape: LlamaConfig, *, in_segments: bool) -> str:
    """`auto` is the C kernel on a CPU and Triton on CUDA, where they are to be had, and sdpa otherwise.

    Kernels for CUDA read memory in one piece only.
    """
    wanted, on_cpu = config.attention, config.device == "cpu"
    has_native = on_cpu and shape.head_dim <= MOST_DIM and library() is not None
    has_triton = importlib.util.find_spec("triton") is not None
    if in_segments and wanted in ("triton", "varlen"):
        raise ConfigError(
            f"--attention {wanted} reads a pool in one piece; with --allocator {config.allocator} and a "
            "device's memory give --attention sdpa, or size the pool with --kv-memory"
        )
    if wanted == "auto" and in_segments and not has_native:
        return "sdpa"
    if wanted == "auto":
        return "native" if has_native else "triton" if has_triton and not on_cpu else "sdpa"
    if wanted == "native" and not has_native:
        raise ConfigError("--attention native: there are no kernels in C here; the log has the reason")
    if wanted in ("triton", "varlen") and on_cpu:
        raise ConfigError(f"--attention {wanted} needs --device cuda")
    if wanted == "triton" and not has_triton:
        raise ConfigError("--attention triton: the package triton is not installed")
    if wanted == "varlen" and config.kv_dtype not in ("bf16", "fp16"):
        raise ConfigError("--attention varlen needs --kv-dtype bf16 or fp16")
    return wanted
