"""vLLM while it serves: preemption by the count in the line, KV scales, LoRA ranks, odd token lines."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.diagnose.rules.logs.oom_case import setting
from kvprobe.evidence.events import Event
from kvprobe.summary.units import percent, whole

_FEW_RUNNING: Final = 4
_HIGH: Final = 0.9
_INCONSISTENT: Final = 0.05


def preempted(view: LogView) -> list[LogCandidate]:
    """V0 prints the 1st, 51st, 101st … event: the count is the number in the line. One alone is a peak."""
    events = view.all("preemption")
    if not events:
        return []
    counts = [n for e in events if isinstance(n := e.get("total"), int)]
    count = max(counts, default=len(events))
    stats = [e for e in view.all("engine_stats") if (e.get("kv_usage") or 0) >= _HIGH]
    running = [int(r) for e in stats if (r := e.get("running")) is not None]
    groups = any(e.get("mode") == "SWAP" for e in events)  # of several sequences each
    few = bool(running) and max(running) <= _FEW_RUNNING and not groups
    at_usage = f", KV usage up to {percent(max(e.get('kv_usage') for e in stats))}" if stats else ""
    span = dict.fromkeys((min(running), max(running))) if running else {}
    with_running = f" with {' to '.join(map(str, span))} requests running" if running else ""
    pool = view.last("pool_size")
    return [
        candidate(
            "logical_kv_too_large" if few else "kv_pool_pressure",
            "certain" if stats and not few else "likely" if stats or count > 1 else "suspected",
            f"{whole(count)} preemption{'s' * (count != 1)} (the counter in the line; one line stands for "
            f"up to 50){at_usage}{with_running}: "
            "requests lose their blocks and are computed again.",
            [
                cite(events[-1]),
                *[cite(e, "kv_usage", "running", "waiting") for e in stats[-2:]],
                *_cites(pool),
            ],
            fatal=False,
            at=events[0],
            phase="serve",
            check_first=["`--max-num-seqs` against KV tokens / p95 length of a request"],
            remedy=[
                _most_sequences(pool),
                "more KV: a higher `--gpu-memory-utilization` where the card has room, "
                "`--kv-cache-dtype fp8` (twice the "
                "tokens), more GPUs",
            ],
            would_change_my_mind=["a preemption counter that stands still under the same load"],
        )
    ]


def _cites(event: Event | None) -> list[Evidence]:
    return [] if event is None else [cite(event)]


def _most_sequences(pool: Event | None) -> str:
    tokens = None if pool is None else pool_tokens(pool)
    if not tokens:
        return "fewer sequences at once: `--max-num-seqs` <= KV tokens / p95 length"
    example = f"at 2,000 tokens: {tokens // 2000}"
    return f"fewer sequences at once: `--max-num-seqs` <= {whole(tokens)} KV tokens / p95 length ({example})"


def pool_tokens(pool: Event) -> int | None:
    """Tokens of the pool: printed, or blocks x block size (16 where the log says nothing else)."""
    if pool.get("tokens"):
        return int(pool.get("tokens"))
    blocks = pool.get("blocks")
    return None if blocks is None else int(blocks) * int(pool.get("block_size") or 16)


def scales(view: LogView) -> list[LogCandidate]:
    """The warning about KV scales is no proof of damage: only ever suspected, and never fatal."""
    # Answers are quoted text by nature; here the text itself is what is looked at.
    garbage = next((e for e in view.events if e.name == "garbled_output"), None)
    dtype = str(setting(view, "kv_cache_dtype") or "")
    event = view.first("kv_scales_default") or next(
        (
            e
            for e in view.all("config")
            if str(e.get("kv_cache_dtype") or "").startswith(("fp8", "int8", "nvfp4"))
        ),
        None,
    )
    if event is None or garbage is None:
        return []
    return [
        candidate(
            "kv_quant_error",
            "suspected",  # nothing was measured: a template or a kernel garbles output, too
            f"The cache is {dtype or 'fp8'} with default scales, and the output is garbled.",
            [cite(event), cite(garbage)],
            fatal=False,
            at=garbage,
            phase="serve",
            check_first=["the same prompts with `--kv-cache-dtype auto`"],
            remedy=["calibrated scales, or `--kv-cache-dtype auto` at half the tokens"],
            would_change_my_mind=["the same garbled output with a 16-bit cache"],
        )
    ]


def lora_rank(view: LogView) -> list[LogCandidate]:
    """Buffers are sized for max_lora_rank, whatever rank is loaded."""
    most, loaded = setting(view, "max_lora_rank"), view.last("lora_loaded")
    rank = loaded.get("rank") if loaded is not None else None
    if not isinstance(most, int) or not isinstance(rank, int) or rank >= most or loaded is None:
        return []
    return [
        candidate(
            "reservation_policy_waste",
            "suspected",  # a larger adapter may come later
            f"LoRA buffers are sized for rank {most}, the loaded adapter has rank {rank}: "
            f"{percent(1 - rank / most)} of them "
            "is never used.",
            [cite(loaded)],
            fatal=False,
            at=loaded,
            check_first=["the largest rank of the adapters in use"],
            remedy=[
                f"`--max-lora-rank {rank}`: gives {percent(1 - rank / most)} of the LoRA buffers to the cache"
            ],
            would_change_my_mind=[f"an adapter of rank {most}"],
        )
    ]


def swap_exhausted(view: LogView) -> list[LogCandidate]:
    """V0 aborts when preempted groups of several sequences no longer fit the swap space."""
    event = view.first("swap_exhausted")
    if event is None:
        return []
    return [
        candidate(
            "kv_pool_pressure",
            "likely",
            "The KV pool was full, requests were swapped out, and the swap space ran full as well: "
            "the engine gave up.",
            [cite(event)],
            fatal=True,
            at=event,
            phase="serve",
            check_first=["sequences per request (`n`, `best_of`, beams): only these are swapped"],
            remedy=[
                "fewer sequences at once (`--max-num-seqs`) or per request (`n`)",
                "`--swap-space` higher (GiB of host memory per GPU)",
            ],
            would_change_my_mind=["a low KV usage in the stats lines before it"],
        )
    ]


def encoder_cache(view: LogView) -> list[LogCandidate]:
    """An image that is larger than the encoder cache, which was sized at the start."""
    event = view.first("encoder_cache_exceeded")
    if event is None:
        return []
    length, cache = event.get("length"), event.get("size")
    return [
        candidate(
            "fixed_workspace_missized",
            "certain",
            f"An input of {whole(length)} encoder tokens does not fit the encoder cache of "
            f"{whole(cache)} tokens, which "
            "was allocated at the start; the card's memory is not the limit.",
            [cite(event)],
            fatal=False,
            at=event,
            phase="serve",
            check_first=["`--limit-mm-per-prompt` and `--max-num-batched-tokens`: they size that cache"],
            remedy=[
                f"`--max-num-batched-tokens` of at least {whole(length)}, or larger limits at the start",
                "smaller images (`max_pixels`)",
            ],
            would_change_my_mind=["the same refusal with a cache above the input's length"],
        )
    ]


RULES: Final = (preempted, scales, lora_rank, swap_exhausted, encoder_cache)
