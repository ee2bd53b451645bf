"""The options of `kvprobe replay` as they were written, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvprobe.errors import Problem, UsageError
from kvprobe.model.spec import ModelSpec
from kvprobe.plan.pool import ByteRange, EngineOptions, Pool
from kvprobe.plan.simulate.cost import ASSUMED, StepCost, from_gpu
from kvprobe.plan.simulate.settings import ALLOCATORS, ENGINES, Groups, SimSettings
from kvprobe.plan.sizes import parse_exact
from kvprobe.summary.units import size

MAX_COUNT = 1 << 40
SEATS = {"reference": 64, "vllm": 256, "sglang": 256}
BATCH = {"reference": 512, "vllm": 8192, "sglang": 8192}
_PROBES = (1, 15, 1_000, 5_000, 40_000, 300_000)
_FAR_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Texts of the options; null means not said. `fit` gives the cost of a step where a run was given."""

    model: str | None = None
    bytes_per_token: str | None = None
    pool: str | None = None
    blocks: str | None = None
    block_size: str | None = None
    engine: str = "vllm"
    allocator: str = "paged"
    preemption: str = "recompute"
    swap_space: str | None = None
    max_num_seqs: str | None = None
    max_num_batched_tokens: str | None = None
    max_model_len: str | None = None
    max_tokens: str | None = None
    kv_dtype: str | None = None
    tp: str | None = None
    watermark: str | None = None
    prefix_caching: bool = True
    gpu: str | None = None


SWEPT = (
    "pool",
    "blocks",
    "block-size",
    "max-model-len",
    "kv-dtype",
    "max-num-seqs",
    "max-num-batched-tokens",
    "allocator",
    "preemption",
    "engine",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """`bytes_per_token` is null where only a number of blocks was given."""

    settings: SimSettings
    cost: StepCost
    bytes_per_token: float | None
    assumptions: tuple[str, ...]


def resolve(ask: Ask, fitted: StepCost | None = None) -> Resolved:
    """Check everything. Raises UsageError with what is wrong."""
    _known("--engine", ask.engine, ENGINES)
    _known("--allocator", ask.allocator, ALLOCATORS)
    _known("--preemption", ask.preemption, ("recompute", "swap"))
    spec = _load(ask.model)
    per_token = _bytes_per_token(ask, spec)
    memory = _memory(ask, spec, per_token)
    limit = _count("--max-model-len", ask.max_model_len) or (spec.max_position_tokens if spec else None)
    settings = SimSettings(
        usable_blocks=memory.usable,
        block_size=memory.block_size,
        allocator=ask.allocator,  # type: ignore[arg-type]
        engine=ask.engine,  # type: ignore[arg-type]
        prefix_caching=ask.prefix_caching,
        max_num_seqs=_count("--max-num-seqs", ask.max_num_seqs) or SEATS[ask.engine],
        max_num_batched_tokens=budget_tokens(ask),
        max_model_len=limit,
        max_tokens=_count("--max-tokens", ask.max_tokens),
        swap_blocks=_swap(ask, memory.block_bytes),
        full_prompt=ask.engine == "vllm",
        watermark=_share("--watermark", ask.watermark),
        groups=memory.groups,
    )
    cost = fitted or _gpu_cost(ask, spec, per_token)
    notes = (*memory.notes, *_notes(ask, settings, spec))
    return Resolved(settings=settings, cost=cost, bytes_per_token=per_token, assumptions=notes)


def changed(ask: Ask, name: str, value: str) -> Ask:
    """The same with one swept option set. Raises UsageError for an option that cannot be swept."""
    if name not in SWEPT:
        raise _problem("bad_sweep", f"--sweep: `{name[:40]}` cannot be swept", f"known: {', '.join(SWEPT)}")
    changes: dict[str, Any] = {"pool": None, "blocks": None} if name in ("pool", "blocks") else {}
    return replace(ask, **changes | {name.replace("-", "_"): value})


def _load(model: str | None) -> ModelSpec | None:
    if model is None:
        return None
    from kvprobe.plan.api import load_model

    return load_model(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    usable: int
    block_size: int
    block_bytes: float | None
    groups: Groups | None = None
    notes: tuple[str, ...] = ()


def _bytes_per_token(ask: Ask, spec: ModelSpec | None) -> float | None:
    """Of a token that stays, on one GPU."""
    if ask.bytes_per_token is not None:
        if spec is not None:
            fix = "leave one of the two out"
            raise _problem("conflict", "--model and --bytes-per-token both say what a token costs", fix)
        if ask.kv_dtype is not None:
            fix = "give --model instead of --bytes-per-token"
            raise _problem("conflict", "--kv-dtype needs a model to count from", fix)
        return float(_count("--bytes-per-token", ask.bytes_per_token) or 0)
    from kvprobe.plan.kv_cost import kv_cost

    return None if spec is None else float(kv_cost(spec, _engine_options(ask)).bytes_per_token)


def _engine_options(ask: Ask) -> EngineOptions:
    return EngineOptions(
        block_size=_count("--block-size", ask.block_size, most=1 << 20),
        max_model_len=_count("--max-model-len", ask.max_model_len),
        max_num_batched_tokens=budget_tokens(ask),
        max_num_seqs=_count("--max-num-seqs", ask.max_num_seqs),
        prefix_caching=ask.prefix_caching,
        tp=_count("--tp", ask.tp) or 1,
        kv_dtype_k=ask.kv_dtype or "auto",
        kv_dtype_v=ask.kv_dtype or "auto",
    )


def budget_tokens(ask: Ask) -> int:
    """Most tokens of a step, as said or by the engine's default."""
    return _count("--max-num-batched-tokens", ask.max_num_batched_tokens) or BATCH.get(ask.engine, 512)


def _memory(ask: Ask, spec: ModelSpec | None, per_token: float | None) -> _Memory:
    if (ask.pool is None) == (ask.blocks is None):
        fix = "give --pool SIZE (with --model or --bytes-per-token) or --blocks N, one of them"
        raise _problem("no_pool", "how large the pool is must be said once", fix)
    if spec is not None:
        return _of_model(ask, spec)
    block = _count("--block-size", ask.block_size, most=1 << 20) or (1 if ask.engine == "sglang" else 16)
    null = 0 if ask.engine == "sglang" else 1
    if ask.blocks is not None:
        blocks = _count("--blocks", ask.blocks) or 0
        each = None if per_token is None else per_token * block
        return _Memory(usable=blocks - null, block_size=block, block_bytes=each)
    if per_token is None:
        fix = "give --model DIR or --bytes-per-token N"
        raise _problem("no_model", "--pool SIZE needs to know what a token costs", fix)
    return _Memory(
        usable=int(_size("--pool", ask.pool) // (per_token * block)) - null,
        block_size=block,
        block_bytes=per_token * block,
    )


def _of_model(ask: Ask, spec: ModelSpec) -> _Memory:
    """By the engine's own allocator."""
    from kvprobe.plan.engines import pool_for

    options = _engine_options(ask)
    available = ByteRange.of(_size("--pool", ask.pool) if ask.pool is not None else 1 << 40)
    pool = pool_for(ask.engine, None, spec, options, available)
    if pool.state_slots is not None or pool.swa_tokens is not None:
        fix = "use --engine vllm, or --bytes-per-token for attention that grows alone"
        raise _problem("not_simulated", f"{ask.engine} keeps {spec.name} in two pools: not simulated", fix)
    blocks = (pool.num_blocks or 0) if ask.blocks is None else _count("--blocks", ask.blocks) or 0
    block = pool.block_size or 16
    each = None if pool.block_bytes is None else float(pool.block_bytes)
    groups = groups_of(pool, block)
    if groups is None:
        return _Memory(
            usable=blocks - pool.null_blocks, block_size=block, block_bytes=each, notes=pool.assumptions
        )
    if ask.allocator != "paged":
        raise _problem(
            "not_simulated",
            f"--allocator {ask.allocator} cannot hold {spec.name}, whose layers are of several kinds",
            "use --allocator paged",
        )
    note = (
        "layers of several kinds: windows and states are taken at a request's full length when it is let in, "
        "and prefixes are not reused"
    )
    return _Memory(
        usable=blocks - pool.null_blocks,
        block_size=groups.block_size,
        block_bytes=each,
        groups=groups,
        notes=(*pool.assumptions, note),
    )


def groups_of(pool: Pool, block: int) -> Groups | None:
    """Null where a request takes one block for each begun block of tokens, and nothing else."""
    if all(pool.blocks_for(tokens) == -(-tokens // block) for tokens in _PROBES):
        return None
    grown = pool.blocks_for(2 * _FAR_TOKENS) - pool.blocks_for(_FAR_TOKENS)
    weight = max(1, (pool.groups or (1,))[0]) if grown else 0
    size = max(1, round(weight * _FAR_TOKENS / grown)) if grown else block
    return Groups(size, weight, pool.blocks_for)


def _gpu_cost(ask: Ask, spec: ModelSpec | None, per_token: float | None) -> StepCost:
    if ask.gpu is None:
        return ASSUMED
    if spec is None or per_token is None:
        raise _problem(
            "no_model", "--gpu needs the model: its weights decide a step's time", "give --model DIR"
        )
    return from_gpu(ask.gpu, spec, kv_bytes_per_token=per_token, tp=_count("--tp", ask.tp) or 1)


def _swap(ask: Ask, block_bytes: float | None) -> int:
    if ask.preemption != "swap":
        if ask.swap_space is not None:
            raise _problem(
                "conflict", "--swap-space is used by --preemption swap alone", "add it or leave it out"
            )
        return 0
    if ask.swap_space is None or not block_bytes:
        fix = "give --swap-space SIZE, and --model or --bytes-per-token"
        raise _problem("no_swap_space", "--preemption swap needs to know how many blocks the host holds", fix)
    return int(_size("--swap-space", ask.swap_space) // block_bytes)


def _notes(ask: Ask, settings: SimSettings, spec: ModelSpec | None) -> list[str]:
    notes = []
    if ask.max_num_seqs is None:
        notes.append(f"--max-num-seqs {settings.max_num_seqs} is a default; the server's own may differ")
    if ask.max_num_batched_tokens is None:
        notes.append(f"--max-num-batched-tokens {settings.max_num_batched_tokens:,} is a default")
    if ask.max_model_len is None and spec is not None and spec.max_position_tokens:
        notes.append(f"context limit {spec.max_position_tokens:,} tokens, the model's")
    if settings.max_tokens is None and (settings.allocator == "paged-reserve" or settings.engine == "sglang"):
        notes.append("requests ask for exactly the output they have in the trace: give --max-tokens")
    if ask.pool is not None:
        notes.append(f"the pool of {size(_size('--pool', ask.pool))} is cache alone: weights lie beside it")
    return notes


def _known(option: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        from kvprobe.cli.options import meant

        fix = meant(word, known) or f"known: {', '.join(known)}"
        raise _problem("bad_value", f"{option}: `{word[:40]}` is not one of {', '.join(known)}", fix)


def _count(option: str, text: str | None, most: int = MAX_COUNT) -> int | None:
    if text is None:
        return None
    plain = text.strip().replace("_", "").replace(",", "")
    if not (plain.isascii() and plain.isdigit() and 1 <= int(plain[:20]) <= most):
        raise _problem("bad_value", f"{option}: `{text[:40]}` is no whole number above 0", "write such as 64")
    return int(plain)


def _share(option: str, text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise _problem("bad_value", f"{option}: `{text[:40]}` is no share below 1", "write such as 0.01")
    return value


def _size(option: str, text: str | None) -> int:
    return parse_exact(text or "", option).nominal


def _problem(code: str, message: str, fix: str) -> UsageError:
    return UsageError(Problem(code, message, fix))
