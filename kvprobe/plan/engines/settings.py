"""What is common to all engines before they allocate: the checked options and the cache formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvprobe.errors import Problem, UsageError
from kvprobe.model.dtypes import KVDtype, kv_dtype
from kvprobe.model.layouts import drafts, stage_sizes, tp_problem
from kvprobe.model.spec import Latent, Layer, ModelSpec
from kvprobe.plan.engines.versions import Version
from kvprobe.plan.pool import EngineOptions

_POSITIVE = (
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tp",
    "pp",
    "max_running_requests",
    "ctx",
    "parallel",
    "ubatch",
    "tokens",
)
_NOT_NEGATIVE = ("speculative_tokens", "draft_layers", "swap_space_bytes", "state_slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One question to an allocator: a model, options that make sense, and the formats of K and V."""

    version: Version
    spec: ModelSpec
    options: EngineOptions
    k: KVDtype
    v: KVDtype

    def stages(self) -> tuple[tuple[Layer, ...], ...]:
        """Layers that own a cache, by pipeline stage; the draft's join the last one."""
        sizes = self.options.layer_partition or stage_sizes(len(self.spec.layers), self.options.pp)
        cut, first = [], 0
        for size in sizes:
            cut.append(self.spec.layers[first : first + size])
            first += size
        cut[-1] += drafts(self.spec, self.options.draft_layers)
        return tuple(tuple(layer for layer in stage if layer.owns_cache) for stage in cut)

    def layers(self) -> Iterator[Layer]:
        """All layers that own a cache, over all stages."""
        for stage in self.stages():
            yield from stage

    @property
    def max_model_len(self) -> int | None:
        """The length that is asked for; without one, the model's own."""
        return self.options.max_model_len or self.spec.max_position_tokens

    @property
    def sparse_latent(self) -> bool:
        """Is it an MLA model with a sparse indexer (DeepSeek V3.2 and its kin)?"""
        return any(
            isinstance(mixer, Latent) and mixer.indexer_dim is not None
            for layer in self.spec.owning()
            for mixer in layer.mixers
        )


def setting(version: Version, spec: ModelSpec, options: EngineOptions) -> Setting:
    """Raises UsageError, with a fix, for options that no engine could run."""
    problems = [*_bad_numbers(options), *_bad_split(spec, options)]
    if problems:
        raise UsageError(*problems)
    return Setting(
        version=version,
        spec=spec,
        options=options,
        k=kv_dtype(options.kv_dtype_k, model_dtype=spec.dtype),
        v=kv_dtype(options.kv_dtype_v, model_dtype=spec.dtype),
    )


def _bad_numbers(options: EngineOptions) -> Iterator[Problem]:
    for names, least in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0)):
        for name in names:
            value = getattr(options, name)
            if value is not None and value < least:
                option = "--" + name.removesuffix("_bytes").replace("_", "-")
                yield Problem(code="option_range", message=f"{option} is {value}", fix=f"use {least} or more")
    for name in ("swa_full_tokens_ratio", "mamba_full_memory_ratio"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            yield Problem(
                code="option_range",
                message=f"--{name.replace('_', '-')} is {value}",
                fix="use a number above 0, such as 0.8",
            )


def _bad_split(spec: ModelSpec, options: EngineOptions) -> Iterator[Problem]:
    layers, cut = len(spec.layers), options.layer_partition
    if options.pp > layers:
        yield Problem(
            code="pp_too_large",
            message=f"{layers} layers cannot be cut into {options.pp} pipeline stages",
            fix=f"use --pp between 1 and {layers}",
        )
    if cut is not None and (len(cut) != options.pp or sum(cut) != layers or min(cut) < 1):
        yield Problem(
            code="layer_partition",
            message=f"the partition {','.join(map(str, cut))} does not cut {layers} layers into "
            f"{options.pp} stages",
            fix=f"give {options.pp} counts, one a stage, that add up to {layers}",
        )
    uneven = tp_problem(spec, options.tp) if options.tp >= 1 else None
    if uneven:
        yield Problem(code="tp_split", message=uneven, fix="choose a --tp that divides these heads")
