"""Refusals of vLLM to start that carry their own numbers: context against pool, memory already taken, an
assertion of the profiler, and what it says when loading or warming up failed."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.diagnose.rules.logs.oom_case import setting
from kvprobe.diagnose.rules.logs.vllm_room import room_of
from kvprobe.evidence.events import Event
from kvprobe.summary.units import size, whole

_GIB: Final = 2**30


def context_over_pool(view: LogView) -> list[LogCandidate]:
    """One request of max_model_len needs more than the pool: the line itself is the proof."""
    event = view.first("len_exceeds_pool")
    if event is None:
        return []
    tokens = event.get("max_model_len")
    if event.get("pool") is not None:
        why, remedy = _in_tokens(view, event)
    else:
        why, remedy = _in_bytes(event)
    available = event.get("available")
    more = _peak_took_it(view, event)
    excludes = {}
    if available is not None and available > 0:
        excludes["weights_plus_fixed_too_large"] = (
            f"{size(available)} were left for the cache after weights and fixed parts"
        )
    return [
        candidate(
            "max_model_len_exceeds_pool",
            "certain",
            why,
            [cite(event), *[cite(e) for e in view.all("available_kv", "pool_size")[-1:]]],
            fatal=True,
            at=event,
            phase="profile",
            excludes=excludes,
            check_first=[
                f"whether requests of {whole(tokens)} tokens really come: the limit can be lower "
                "than the model's"
            ],
            remedy=remedy,
            would_change_my_mind=["a pool that holds more tokens than max_model_len in the same log"],
        ),
        *more,
    ]


def _peak_took_it(view: LogView, event: Event) -> list[LogCandidate]:
    """Where the budget shows that activations, not weights, left the pool small."""
    room = room_of(view)
    if room.activation is None or room.kv is None or room.activation < max(room.kv, _GIB):
        return []
    return [
        candidate(
            "startup_activation_peak",
            "likely",
            f"The activations of the profiling pass take {size(room.activation)}, more than the cache got "
            f"({room.sum_text()}).",
            [cite(e) for e in room.told[-2:]],
            fatal=True,
            root=False,
            at=event,
            phase="profile",
            check_first=["`--max-num-batched-tokens`: without it the pass is as long as max_model_len"],
            remedy=[
                f"`--max-num-batched-tokens` halved: gives about {size(room.activation / 2)} to the cache"
            ],
            would_change_my_mind=["the same peak with 2,048 batched tokens"],
        )
    ]


def _in_tokens(view: LogView, event: Event) -> tuple[str, list[str]]:
    longest, pool = int(event.get("max_model_len")), int(event.get("pool"))
    block = setting(view, "block_size") or 16
    blocks = -(-longest // block) - pool // block
    parts = f"{pool // block:,} blocks x {block} = {whole(pool)} tokens; " if pool % block == 0 else ""
    why = (
        f"One request of {whole(longest)} tokens does not fit the pool: {parts}{pool / longest:.2f}x "
        f"of one; {blocks:,} more "
        f"blocks of {block} tokens "
        "are needed."
    )
    per_token = _per_token(view)
    more = (
        f" ({size(blocks * block * per_token)} more)"
        if per_token
        else f" (for {blocks * block:,} more tokens)"
    )
    return why, [
        f"`--max-model-len {pool}`: starts at once, at one request of that length",
        f"more memory for the cache{more}: a higher `--gpu-memory-utilization` where the card has "
        "room, a quantised "
        "cache (`--kv-cache-dtype fp8` doubles the tokens), or more GPUs",
    ]


def _per_token(view: LogView) -> int | None:
    kv = (view.prediction or {}).get("kv") or {}
    found = kv.get("bytes_per_token_per_gpu")
    return None if found is None else round(found)


def _in_bytes(event: Event) -> tuple[str, list[str]]:
    longest, needed, available = event.get("max_model_len"), event.get("needed"), event.get("available")
    estimate = event.get("estimate")
    fp8 = "`--kv-cache-dtype fp8`: halves what a token needs (check the output's quality)"
    if available is None:  # the line is cut off
        why = f"One request of {whole(longest)} tokens needs {size(needed)} of cache, more than is available."
        return why, ["a lower `--max-model-len`: what it needs falls in proportion", fp8]
    why = (
        f"One request of {whole(longest)} tokens needs {size(needed)} of cache and {size(available)} "
        "are available: "
        f"{size(needed - available)} short."
    )
    if estimate:
        first = f"`--max-model-len {estimate}`: the engine's own estimate, a lower bound"
        first += " (a shorter limit also profiles less)"
    else:
        fits = int(longest * max(available, 0) / needed) if needed else 0
        first = f"`--max-model-len` of about {whole(fits)} (in proportion, for full attention)"
    return why, [
        first,
        f"{size(needed - available)} more for the cache: a higher `--gpu-memory-utilization` where "
        "the card has room, "
        "smaller weights, or more GPUs",
        fp8,
    ]


def profiling_assert(view: LogView) -> list[LogCandidate]:
    """More free memory after profiling than before: somebody released some, or the check is wrong."""
    event = view.first("profiling_assert")
    if event is None:
        return []
    a, b = event.get("initial"), event.get("current")
    equal = a is not None and a == b
    cause = "engine_accounting_bug" if equal else "other_process_on_gpu"
    numbers = f" (initial {_amount(a)}, now {_amount(b)})" if a is not None and b is not None else ""
    why = (
        f"The profiler's check failed with equal numbers{numbers}: the check itself is wrong on this device."
        if equal
        else f"Memory came free while this engine profiled{numbers}: another process on the card "
        "released it, and "
        "the measurement is void."
    )
    return [
        candidate(
            cause,
            "likely" if a is not None and b is not None and b >= a else "suspected",
            why,
            [cite(event)],
            fatal=True,
            at=event,
            phase="profile",
            check_first=["other processes on the card during the start (`nvidia-smi --loop=1`)"],
            remedy=["upgrade the engine"]
            if equal
            else ["start the engine alone on the card, others after it"],
            would_change_my_mind=["the same assertion on a card that nobody else uses"],
        )
    ]


def _amount(value: float) -> str:
    """V0 prints bytes, V1 GiB without always saying so."""
    return size(value) if value > 10_000 else f"{value:g} GiB"


def hints(view: LogView) -> list[LogCandidate]:
    """What vLLM itself says of a failed load or warm-up, where no sized message stands in the log."""
    if view.all("torch_oom"):
        return []
    load, warm = view.first("load_oom_hint"), view.first("sampler_warmup_oom")
    found = []
    if load is not None:
        found.append(_hint(load, "weights_plus_fixed_too_large", _load_why(view)))
    if warm is not None:
        count = whole(warm.get("requests"))
        found.append(
            _hint(
                warm,
                "gpu_memory_utilization_too_high",
                f"The pool was in place and left too little for the sampler's warm-up with {count} "
                "dummy requests.",
            )
        )
    return found


def _load_why(view: LogView) -> str:
    told = room_of(view).sum_text()
    return (
        "Loading the weights filled the card"
        + (f" ({told})." if told else ".")
        + (" The advice to lower the utilisation does not help: it plays no part while loading.")
    )


def _hint(event: Event, cause: str, why: str) -> LogCandidate:
    sampler = event.name == "sampler_warmup_oom"
    return candidate(
        cause,
        "likely" if sampler else "suspected",
        why,
        [cite(event)],
        fatal=True,
        at=event,
        phase=event.phase,
        check_first=["the out-of-memory message itself, with its sizes"],
        remedy=[
            "`--max-num-seqs` lower first: the buffer falls in proportion",
            "then `--gpu-memory-utilization`",
        ]
        if sampler
        else ["a quantised checkpoint", "`--tensor-parallel-size` higher"],
        would_change_my_mind=["sizes that show another process on the card"],
    )


RULES: Final = (context_over_pool, profiling_assert, hints)
