"""Refusals that carry one number or none: small pools, guardrails, and errors known only by their words."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import FATAL_EVENTS, cites, lived_on, size
from kvprobe.evidence.events import Event

_OWNED: Final = tuple(name for name in FATAL_EVENTS if name not in {"exception", "engine_dead"})
_ALSO_OWNED: Final = (
    "killed",
    "signal",
    "host_too_small",
    "no_cache_blocks",
    "metal_oom",
    "runner_died",
    "mlx_no_memory",
    "mlx_buffer_limit",
    "exllama_no_memory",
    "mlc_no_memory",
    "cublas_failed",
    "nvml_assert",
    "accelerator_oom",
    "guardrail_refused",
    "arena_no_memory",
    "cpu_oom",
    "engine_words",
)


def context_pool(view: LogView) -> list[LogCandidate]:
    """Old ggml: a scratch pool whose size was fixed before the graph was known."""
    return [
        candidate(
            "fixed_workspace_missized",
            "likely",
            f"ggml's {event.get('pool')} pool of {size(event.get('available'))} is too small for the "
            f"{size(event.get('needed'))} of this graph: its size is fixed in the program, device "
            f"memory is not "
            "the limit.",
            [cite(event)],
            fatal=True,
            at=event,
            check_first=["the batch (-b, n_batch) and the length of the prompt; the version of llama.cpp"],
            remedy=["upgrade: later versions measure the graph", "a smaller n_batch, a shorter prompt"],
            would_change_my_mind=["the same failure in a current version"],
            excludes={"capacity_exhausted": "a pool of fixed size refused, not the device"},
        )
        for event in view.all("context_pool_short")[:1]
    ]


def guardrail(view: LogView) -> list[LogCandidate]:
    """LM Studio refuses before it loads, by its own estimate."""
    event = view.first("guardrail_refused")
    if event is None or view.all("alloc_failed", "buffer_failed"):
        return []
    asked = str(event.get("asked") or "")
    if "NaN" in asked or "undefined" in asked or "Infinity" in asked:
        return [_estimate(event, asked)]
    amount = f" of {asked}" if asked else ""
    return [
        candidate(
            "host_memory_exhausted",
            "suspected",
            f"The guardrail refused to load the model: its estimate{amount} is more than it counts as free; "
            "nothing was allocated, so the estimate is the only proof.",
            [cite(event)],
            fatal=True,
            at=event,
            phase="load",
            check_first=["free memory, models that are loaded already, and the context length of the load"],
            remedy=[
                "unload other models first",
                "a shorter context or a smaller quantisation",
                "a laxer guardrail, if the estimate is wrong",
            ],
            would_change_my_mind=["the model loads with the guardrail off: then the estimate is wrong"],
        )
    ]


def _estimate(event: Event, asked: str) -> LogCandidate:
    return candidate(
        "engine_accounting_bug",
        "likely",
        f"The engine's own estimate of what the model needs is no number ({asked}), so its refusal says "
        "nothing about memory.",
        [cite(event)],
        fatal=True,
        at=event,
        phase="load",
        check_first=["whether the architecture is known to this version"],
        remedy=["upgrade", "switch the guardrail off for this model"],
        would_change_my_mind=["an allocation failure when it is loaded all the same"],
    )


def pool_short(view: LogView) -> list[LogCandidate]:
    """The block manager of TensorRT-LLM or LMDeploy has no free block."""
    events = view.all("pool_short")
    if not events:
        return []
    failed = [e for e in events if e.get("failed")]
    return [
        candidate(
            "kv_pool_pressure",
            "likely" if failed else "suspected",
            f"The KV block manager had no free block in {sum(e.repeats for e in events)} attempts: more "
            "tokens are alive than the pool holds.",
            cites(failed or events, 2),
            fatal=bool(failed),
            at=(failed or events)[0],
            phase="serve",
            check_first=["blocks of the pool against the sum of live tokens, and the scheduler policy"],
            remedy=[
                "a guaranteed-no-evict policy, or fewer requests at once",
                "a larger pool (memory fraction, KV in int8 or fp8)",
            ],
            would_change_my_mind=["free blocks at the time: then the block manager's books are wrong"],
        )
    ]


def arena(view: LogView) -> list[LogCandidate]:
    """ONNX Runtime's or TensorFlow's arena: the size, and its own limit where one is set."""
    event = view.first("arena_no_memory")
    if event is None or lived_on(view, event):
        return []
    asked, limit = event.get("asked"), event.get("limit")
    numbers = f"of {size(asked)} " if asked else ""
    why = f"The runtime's arena could not give a buffer {numbers}on the device"
    if limit is not None:
        why = f"The arena's own limit leaves {size(limit)}, and {size(asked)} were asked"
    return [
        candidate(
            "driver_limit_not_capacity" if limit is not None else "capacity_exhausted",
            "suspected",
            f"{why}; what else is on the device is not told.",
            cites(view.all("arena_no_memory"), 2),
            fatal=True,
            at=event,
            phase=view.phase_at(event),
            check_first=[
                "`nvidia-smi` at the failure, and gpu_mem_limit / per-process fraction of the session"
            ],
            remedy=["a smaller batch or input", "a larger gpu_mem_limit, if the device has room"],
            would_change_my_mind=["gigabytes free on the device at that moment"],
        )
    ]


_BOOKS: Final = ("kvcache", "blockmanager", "evictionpolicy", "kv_cache", "block_manager", "memory_pool")


def failed_check(view: LogView) -> list[LogCandidate]:
    """A check of TensorRT-LLM that failed: of its KV books, or of something else."""
    event = view.first("engine_check_failed")
    if event is None or view.all("cuda_alloc_failed", "trt_alloc_failed", "torch_oom", "pool_short"):
        return []
    books = any(word in str(event.get("file")).lower() for word in _BOOKS)
    what = "its own block keeping" if books else "a setting or a state, not of memory"
    return [
        candidate(
            "engine_accounting_bug" if books else "not_memory",
            "suspected",  # a check in those files also guards settings and plain want of blocks
            f"A check of {what} failed: {str(event.get('check'))[:120]} ({event.get('file')}).",
            [cite(event)],
            fatal=True,
            at=event,
            phase=view.phase_at(event),
            check_first=["known issues of this version about that check", "the first error above it"],
            remedy=["upgrade, or go back to the last version without it", "switch the suspect feature off"],
            would_change_my_mind=["an allocation failure before it"],
        )
    ]


def words_only(view: LogView) -> list[LogCandidate]:
    """An error that says "out of memory" and nothing else that any rule knows."""
    events = [e for e in view.all("oom_words") if not lived_on(view, e)]
    if not events or view.all(*_OWNED, *_ALSO_OWNED):
        return []
    event, host = events[0], bool(events[0].get("host"))
    where = "the host" if host else "a device"
    return [
        candidate(
            "host_memory_exhausted" if host else "capacity_exhausted",
            "suspected",
            f"An allocation on {where} failed; the message has no sizes and does not say what it was for.",
            cites(events, 2),
            fatal=True,
            at=event,
            phase=view.phase_at(event),
            check_first=["`nvidia-smi` (or `free -h`) before the start and at the failure"],
            remedy=["free memory there, or ask for less: a smaller model, context or batch"],
            would_change_my_mind=[
                "much free memory at that moment: then a limit of the driver or of a setting"
            ],
        )
    ]


RULES: tuple[LogRule, ...] = (context_pool, guardrail, pool_short, arena, failed_check, words_only)
