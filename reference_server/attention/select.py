"""Which attention backend serves."""

from __future__ import annotations

from typing import Any

from reference_server.attention.backend import AttentionBackend
from reference_server.attention.formats import kv_format
from reference_server.attention.sdpa import SdpaAttention
from reference_server.attention.store import KVStore
from reference_server.config import ServerConfig
from reference_server.errors import ConfigError
from reference_server.models.shape import LlamaConfig
from reference_server.native.attention import MOST_DIM, NativeAttention
from reference_server.native.library import library


def make_attention(
    config: ServerConfig, shape: LlamaConfig, num_blocks: int, *, scale_factor: float = 1.0
) -> AttentionBackend[Any]:
    """The backend that `--attention` names, with its memory of `num_blocks` blocks.

    Raises `ConfigError` when it cannot serve here, and RuntimeError when there is no memory.
    `scale_factor` multiplies the scales of a quantised cache; 1 is right.
    """
    store = KVStore(
        layers=shape.block_layers,
        num_blocks=num_blocks,
        kv_heads=shape.kv_heads,
        block_size=config.slot_block_size,
        head_dim=shape.head_dim,
        form=kv_format(config.kv_dtype),
        device=config.device,
        scale_factor=scale_factor,
    )
    if config.attention in ("auto", "native") and config.device == "cpu":
        kernels = library()
        if kernels is not None and shape.head_dim <= MOST_DIM:
            return NativeAttention(shape, store, kernels)
        if config.attention == "native":
            raise ConfigError("--attention native: there are no kernels in C here; see the log for the reason")
    return SdpaAttention(shape, store)
