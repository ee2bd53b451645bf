"""The device and the model, before the KV pool is sized. Imports torch."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from reference_server import ailments
from reference_server.attention.formats import KVFormat, kv_format
from reference_server.config import ServerConfig
from reference_server.device import CpuMemory, DeviceMemory, open_memory
from reference_server.errors import ConfigError
from reference_server.models.load import LoadedModel, load_model
from reference_server.models.shape import LlamaConfig
from reference_server.models.tiny import random_weights
from reference_server.models.tokenizer import ByteTokenizer


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model on its device, before the KV pool is sized."""

    config: ServerConfig
    model: LoadedModel
    memory: DeviceMemory | None
    free_at_start: int
    load_seconds: float

    @property
    def form(self) -> KVFormat:
        return kv_format(self.config.kv_dtype)

    @property
    def bytes_per_token(self) -> int:
        """K, V and scales of all layers."""
        shape = self.model.config
        return self.form.bytes_per_token(
            layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
        )

    @property
    def caches_prefixes(self) -> bool:
        """Whether equal prefixes are shared: not where each request lies in one piece, nor where
        layers forget tokens behind a window."""
        config = self.config
        return config.prefix_caching and not config.in_regions and len(self.model.config.groups) == 1

    @property
    def block_bytes(self) -> int:
        """A block serves one group of layers at a time; all layers, where they are of one kind."""
        shape = self.model.config
        one = self.form.bytes_per_token(
            layers=shape.block_layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
        )
        return one * self.config.slot_block_size


def prepare(config: ServerConfig, shape: LlamaConfig | None = None) -> Prepared:
    """Open the device and load the model (random weights of `shape`, when given). Raises `ConfigError`."""
    torch.set_num_threads(config.threads)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA device here; use --device cpu")
    memory = open_memory(config.device, config.device_memory_bytes)
    free = memory.free if memory is not None else 0
    started = time.monotonic()
    if shape is None:
        model = load_model(config.model, seed=config.seed, device=config.device)
    else:
        model = LoadedModel(shape, random_weights(shape, config.seed), ByteTokenizer())
    seconds = time.monotonic() - started
    if isinstance(memory, CpuMemory):
        memory.total = ailments.device_total(config, model.weights.nbytes, memory.total)
        free = memory.free
    return Prepared(_fit_context(config, model.config), model, memory, free, seconds)


def _fit_context(config: ServerConfig, shape: LlamaConfig) -> ServerConfig:
    if config.max_model_len <= shape.max_positions:
        return config
    if config.context_of_model:
        return replace(config, max_model_len=shape.max_positions)
    raise ConfigError(f"--max-model-len is at most {shape.max_positions} for model {shape.name}")
