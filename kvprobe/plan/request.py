"""What the user asks of a plan: one model, one device, one engine and its settings.

The command line and the Python call both make a `PlanRequest`; what-ifs are the same request with one
thing changed. Null means not said.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvprobe.model.spec import ModelSpec
from kvprobe.plan.lengths import Lengths
from kvprobe.plan.pool import ByteRange, EngineOptions

DEFAULT_PREEMPTION = 0.01
"""The chance of a preemption that the largest `max_num_seqs` may carry, when the user names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Sizes are per GPU. `gpu` is the text of `--gpu`; `total` the memory that it stands for.

    `weights` is what one rank holds. `free_memory` is memory free after the model is loaded (vLLM: free
    at start). `running` are the flags of a server that already runs, by name.
    """

    spec: ModelSpec
    gpu: str | None = None
    total: ByteRange | None = None
    total_source: str = "user"
    total_note: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    weights: ByteRange | None = None
    overhead: ByteRange | None = None
    margin: ByteRange | None = None
    available_kv: ByteRange | None = None
    utilisation: float | None = None
    non_torch: ByteRange | None = None
    activation_peak: ByteRange | None = None
    graphs: ByteRange | None = None
    free_memory: ByteRange | None = None
    kv_fraction: float | None = None
    mem_fraction_static: float | None = None
    options: EngineOptions = field(default_factory=EngineOptions)
    lengths: Lengths | None = None
    shared_prefix_tokens: int = 0
    preemption_probability: float = DEFAULT_PREEMPTION
    price_per_hour: float | None = None
    output_tokens_per_s: float | None = None
    running: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """GPUs of one instance."""
        return self.options.tp * self.options.pp

    @property
    def release(self) -> tuple[int, int, int]:
        """The engine's version as three numbers; one that is not known counts as the newest."""
        from kvprobe.plan.engines.versions import NEWEST, parse_version

        return NEWEST if self.engine is None else parse_version(self.engine, self.engine_version).release

    def at_least(self, *version: int) -> bool:
        """Is the engine that new?"""
        return self.release >= version

    def context_tokens(self) -> int | None:
        """The longest request that the settings allow."""
        options = self.options
        if self.engine == "llama.cpp" and options.ctx is not None and options.max_model_len is None:
            return options.ctx
        return options.max_model_len or self.spec.max_position_tokens
