"""MLX, MLC-LLM, ExLlama, Ollama's own words, and NCCL: one or two rules each."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, size, whole
from kvprobe.evidence.events import Event

_MLC_DEFAULT: Final = 0.85
_MLC_BEST: Final = 0.97


def mlx(view: LogView) -> list[LogCandidate]:
    """Limits of Metal: one buffer's length, the number of buffers, memory itself."""
    found = [c for e in view.all("mlx_buffer_limit")[:1] for c in _one_buffer(e)]
    for e in view.all("mlx_resource_limit")[:1]:
        most = whole(e.get("limit"))
        why = f"More than {most} Metal buffers are alive: a limit of their number, not of bytes."
        remedy = ["mx.clear_cache() or a cache limit between requests", "upgrade MLX"]
        found.append(_metal_limit(e, why, remedy))
    return [*found, *(_unified_memory(e) for e in view.all("mlx_no_memory")[:1])]


def _one_buffer(event: Event) -> list[LogCandidate]:
    asked, limit = size(event.get("asked")), size(event.get("limit"))
    why = (
        f"One buffer of {asked} exceeds what Metal allows in one piece ({limit}); the machine's memory is "
        "not the limit."
    )
    remedy = ["a smaller prefill step (chunks of 512 to 2,048 tokens)", "a quantised or shorter KV cache"]
    behind = candidate(
        "runtime_activation_spike",
        "suspected",
        f"What asked for {asked} at once is the prefill of a long prompt.",
        [cite(event)],
        fatal=True,
        root=False,
        at=event,
        check_first=["the length of the prompt and the prefill step"],
        remedy=["a smaller prefill step"],
        would_change_my_mind=["the same size with a short prompt"],
    )
    return [_metal_limit(event, why, remedy), behind]


def _unified_memory(event: Event) -> LogCandidate:
    return candidate(
        "host_memory_exhausted",
        "likely",
        f"Unified memory is used up: {size(event.get('asked'))} were refused.",
        [cite(event)],
        fatal=True,
        at=event,
        check_first=["memory pressure of the machine, and the working-set limit"],
        remedy=["a smaller or more quantised model", "a shorter context", "close other programs"],
        would_change_my_mind=["plenty of free memory"],
    )


def _metal_limit(event: Event, why: str, remedy: list[str]) -> LogCandidate:
    return candidate(
        "driver_limit_not_capacity",
        "certain",
        why,
        [cite(event)],
        fatal=True,
        at=event,
        check_first=["mx.metal.device_info(): max_buffer_length and resource_limit"],
        remedy=remedy,
        would_change_my_mind=["the refusal of a buffer below the limit"],
        excludes={"capacity_exhausted": "a limit of the driver, named in the message, refused it"},
    )


def mlc(view: LogView) -> list[LogCandidate]:
    """MLC-LLM prints the whole sum; only the arithmetic tells which of its three advices is right."""
    event = view.first("mlc_no_memory")
    if event is None:
        return []
    free, weights, temporary = event.get("available"), event.get("weights"), event.get("temporary")
    if free is None:
        why = "The weights may be larger than the GPU's memory."
        return [_mlc(event, "weights_plus_fixed_too_large", "suspected", why, ["quantise, or more GPUs"])]
    cause, reason, remedy = _mlc_verdict(free, weights, temporary)
    parts = f"{size(weights)} of weights + {size(temporary)} of temporary buffer"
    why = f"{parts} = {size(weights + temporary)} against {size(free)}: {reason}."
    # A sum that fits says only that what is left for KV is too small; by how much is not in the message.
    sure: Confidence = "suspected" if cause == "engine_accounting_bug" else "likely"
    return [_mlc(event, cause, sure, why, remedy)]


def _mlc_verdict(free: float, weights: float, temporary: float) -> tuple[str, str, list[str]]:
    """Cause, reason and remedies; `free` is the default fraction of the card."""
    need, card = weights + temporary, free / _MLC_DEFAULT
    if need < free:
        remedy = ["upgrade", "check the context window and KV layout of a custom model"]
        return (
            "engine_accounting_bug",
            "it would fit, so the check, or what it leaves for KV, is wrong",
            remedy,
        )
    if need < _MLC_BEST * card:
        reason = f"that is {_MLC_DEFAULT} of {size(card)}, so the card has room and the fraction is too low"
        remedy = ["gpu_memory_utilization 0.9 or more", "a smaller --prefill-chunk-size"]
        return "gpu_memory_utilization_too_low", reason, remedy
    if temporary > weights:
        remedy = ["a smaller --prefill-chunk-size: the buffer falls with it"]
        return "startup_activation_peak", "the temporary buffer is the larger part", remedy
    return "weights_plus_fixed_too_large", "the weights do not fit", ["--tensor-parallel-shards", "quantise"]


def _mlc(event: Event, cause: str, sure: Confidence, why: str, remedy: list[str]) -> LogCandidate:
    return candidate(
        cause,
        sure,
        why,
        [cite(event)],
        fatal=True,
        at=event,
        phase="profile",
        check_first=["the three numbers of the message"],
        remedy=remedy,
        would_change_my_mind=["another gpu_memory_utilization than the default 0.85"],
    )


def exllama(view: LogView) -> list[LogCandidate]:
    """ExLlama's loader: weights and a cache for the full max_seq_len, one after the other."""
    event = view.first("exllama_no_memory")
    if event is None:
        return []
    return [
        candidate(
            "weights_plus_fixed_too_large",
            "suspected",
            "Weights and the cache for the full context do not fit the cards; the message has no sizes, so "
            "it may be the cache (max_seq_len) alone.",
            [cite(event)],
            fatal=True,
            at=event,
            phase="load",
            check_first=["the same load with a max_seq_len of 2,048: if it fits, the cache was too large"],
            remedy=[
                "a smaller max_seq_len or a quantised cache (cache_mode Q4/Q6)",
                "fewer bits per weight",
                "gpu_split",
            ],
            would_change_my_mind=["the same failure with a tiny context: then the weights for certain"],
        )
    ]


def ollama_runner(view: LogView) -> list[LogCandidate]:
    """A runner that ended for device memory, without the lines that say which buffer."""
    events = [
        e
        for e in view.all("runner_died")
        if "out of memory" in str(e.get("reason")) or "cudaMalloc" in str(e.get("reason"))
    ]
    events += view.all("layout_failed")
    if not events or view.all("buffer_failed", "alloc_failed", "ggml_cuda_oom"):
        return []
    event, offload = events[0], view.last("offload")
    numbers = ""
    if offload is not None:
        need, there = size(offload.get("required")), size(offload.get("available"))
        numbers = f": {need} needed, {there} available by its own estimate"
    return [
        candidate(
            "capacity_exhausted",
            "suspected",
            f"The runner could not get device memory{numbers}; the runner's own lines are not in the log.",
            [cite(event), *cites([offload] if offload else [], 1)],
            fatal=True,
            at=event,
            check_first=["the runner's lines before it (OLLAMA_DEBUG=1): weights, KV or compute buffer"],
            remedy=[
                "a smaller num_ctx",
                "a smaller num_gpu (layers on the GPU)",
                "OLLAMA_GPU_OVERHEAD to keep room",
            ],
            would_change_my_mind=["`failed to allocate … buffer` lines of the runner"],
        )
    ]


def nccl(view: LogView) -> list[LogCandidate]:
    """NCCL's buffers, or its shared memory."""
    events = view.all("nccl_no_memory")
    if not events:
        return []
    event = next((e for e in events if e.get("asked")), events[0])
    shared = event.get("what") == "shared memory"
    where = (
        "in /dev/shm (shared memory of the host)" if shared else f"({event.get('what') or 'device'} memory)"
    )
    asked = f" {size(event.get('asked'))}" if event.get("asked") else " its buffers"
    return [
        candidate(
            "nccl_or_runtime_buffers",
            "likely",
            f"NCCL could not get{asked} {where}; the framework's own allocator is not what refused.",
            cites(events, 3),
            fatal=True,
            at=event,
            check_first=[
                "`df -h /dev/shm`" if shared else "free memory of every card of the group when NCCL starts"
            ],
            remedy=["--shm-size of several GiB, or --ipc=host"]
            if shared
            else [
                "a lower memory fraction of the engine: NCCL needs a few hundred MiB to 2 GiB a card",
                "a smaller NCCL_BUFFSIZE or fewer channels",
            ],
            would_change_my_mind=["room of several GiB at that moment"],
        )
    ]


RULES: tuple[LogRule, ...] = (mlx, mlc, exllama, ollama_runner, nccl)
