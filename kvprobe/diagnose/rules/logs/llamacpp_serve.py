"""llama.cpp and Ollama while they serve: a full cache, a full context, reuse that is impossible."""

from __future__ import annotations

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, flag, plural, size, told, whole
from kvprobe.evidence.events import Event


def pool_full(view: LogView) -> list[LogCandidate]:
    """No free cell for a batch; ending at batch 1 is a failure, ending earlier a recovery."""
    tries, fatal = view.all("kv_full"), view.all("kv_full_fatal")
    if not tries and not fatal:
        return []
    smallest = min((e.get("batch") for e in tries if isinstance(e.get("batch"), int)), default=None)
    ended = bool(fatal) or smallest == 1
    slots = told(view, "max_num_seqs")
    proven = slots == 1 or bool(_oversubscribed(view))
    # Without the number of slots one long conversation and many short ones look alike.
    sure: Confidence = "suspected" if not ended or not slots else "certain" if proven else "likely"
    after = (
        any(e.source == tries[-1].source and e.line > tries[-1].line for e in view.events) if tries else True
    )
    end = f"batches shrank to {smallest}, " + ("and it recovered" if after else "and the log ends there")
    if fatal:
        end = f"{plural(len(fatal), 'failure')} with `Context size has been exceeded`"
    elif ended:
        end = "down to a batch of 1 nothing fits"
    return [
        candidate(
            "logical_kv_too_large" if slots == 1 else "kv_pool_pressure",
            sure,
            f"The KV cache has no free cells for the running sequences: {end}.{_oversubscribed(view)}",
            [*cites(fatal, 1), *cites(tries, 1), *cites(_slot_config(view), 1)],
            fatal=False,
            at=(fatal or tries)[0],
            phase="serve",
            check_first=["n_slots, n_ctx_slot and kv_unified of the start, against the sum of live tokens"],
            remedy=[
                "a larger -c, to hold the sum of live conversations",
                "fewer slots (-np), so that their contexts fit together",
                "-ctk/-ctv q8_0: the same bytes hold about twice the tokens",
            ],
            would_change_my_mind=["free cells at the time: then the fault is in the cache's search"],
        )
    ]


def _oversubscribed(view: LogView) -> str:
    """` 4 slots x 1,024 = 4,096 tokens are offered over one cache of 1,024 (4.0x oversubscribed).`"""
    slots, context = told(view, "max_num_seqs"), told(view, "max_model_len")
    if not slots or not context or flag(view, "kv_unified") is not True:
        return ""
    offered = f"{whole(slots)} slots x {whole(context)} = {whole(slots * context)} tokens"
    return f" {offered} are offered over one cache of {whole(context)} ({slots:.1f}x oversubscribed)."


def _slot_config(view: LogView) -> list[Event]:
    return [
        e
        for e in view.all("config")
        if e.get("max_num_seqs") is not None and e.get("max_model_len") is not None
    ]


def truncated(view: LogView) -> list[LogCandidate]:
    """Prompts cut or contexts shifted: the window is the limit, no memory ran out."""
    cut = view.all("truncated")
    refused = [e for e in view.all("refused") if e.get("reason") == "context" and e.engine not in {"sglang"}]
    if not cut and not refused:
        return []
    said = []
    if refused:
        longest = max(refused, key=lambda e: e.get("asked") or 0)
        said.append(
            f"{plural(sum(e.repeats for e in refused), 'request')} refused, the longest with "
            f"{whole(longest.get('asked') or 0)} tokens against {whole(longest.get('limit') or 0)}"
        )
    if cut:
        said.append(_cut_words(cut))
    found = [
        candidate(
            "context_limit_truncation",
            "certain" if any(e.get("limit") or e.get("input") for e in (*cut, *refused)) else "likely",
            f"The context window is the limit, not memory: {'; '.join(said)}.",
            [*cites(refused, 2), *cites(cut, 2), *cites(_slot_config(view), 1)],
            fatal=False,
            at=(cut or refused)[0],
            phase="serve",
            check_first=[
                "the context per request (Ollama: num_ctx; llama.cpp: -c divided by -np unless unified; "
                "other engines: their limit of input or total tokens)"
            ],
            remedy=[
                "a larger context: num_ctx, OLLAMA_CONTEXT_LENGTH, or -c (it costs KV memory for every slot)",
                "shorter prompts, or a summary of the history",
            ],
            would_change_my_mind=["an allocation failure at the same time"],
            excludes={"capacity_exhausted": "no allocation failed"},
        )
    ]
    split = _split(view, refused)
    return [*found, split] if split is not None else found


def _cut_words(cut: list[Event]) -> str:
    worst = max(cut, key=lambda e: e.get("input") or 0)
    asked, limit, new = worst.get("input"), worst.get("limit"), worst.get("new")
    count = plural(sum(e.repeats for e in cut), "time")
    if asked and limit:
        kept = (
            f", {whole(new)} kept"
            if new
            else f", {whole(worst.get('dropped'))} dropped"
            if worst.get("dropped")
            else ""
        )
        return f"{count} a prompt or a context was cut ({whole(asked)} tokens, limit {whole(limit)}{kept})"
    return f"{count} a context ran full and was cut or shifted"


def _split(view: LogView, refused: list[Event]) -> LogCandidate | None:
    """A request that the whole context would hold, refused by its share of it."""
    slots, unified = told(view, "max_num_seqs"), flag(view, "kv_unified")
    longest = max((e.get("asked") or 0 for e in refused), default=0)
    limit = max((e.get("limit") or 0 for e in refused), default=0)
    if not slots or slots < 2 or unified is not False or not limit or longest > slots * limit:
        return None
    return candidate(
        "reservation_policy_waste",
        "likely",
        f"The context is divided by {whole(slots)} slots: {whole(slots * limit)} tokens in all, "
        f"{whole(limit)} a request; the request of {whole(longest)} would fit the whole.",
        cites([*_slot_config(view), *refused], 2),
        fatal=False,
        root=False,
        check_first=["how many requests really run at once"],
        remedy=["fewer slots (-np)", "--kv-unified, so that one request may use what the others leave"],
        would_change_my_mind=["all slots in use at that moment"],
    )


def no_rewind(view: LogView) -> list[LogCandidate]:
    """The model's memory cannot be rewound: the whole prompt is computed again."""
    events = view.all("no_rewind")
    if not events:
        return []
    times = sum(e.repeats for e in events)
    forced = [e for e in events if "forcing full" in e.text]
    return [
        candidate(
            "prefix_disabled_for_model",
            "certain" if forced else "suspected",  # "not supported" is said at a healthy start, too
            f"{plural(times, 'time')} the cached prompt could not be used: sliding-window or recurrent "
            f"memory cannot rewind, so the prompt is computed from its start; for this model a low hit rate "
            f"is by design.",
            cites(forced or events, 2),
            fatal=False,
            at=(forced or events)[0],
            phase="serve",
            check_first=["the architecture: n_swa above 0, or recurrent (Mamba, DeltaNet) layers"],
            remedy=[
                "--swa-full keeps the whole window cache (more memory) where the model has sliding windows",
                "context checkpoints (--ctx-checkpoints) for recurrent models, in recent builds",
                "only append to the conversation: an unchanged prefix needs no rewind",
            ],
            would_change_my_mind=["the same lines with a model of full attention only"],
        )
    ]


def runtime(view: LogView) -> list[LogCandidate]:
    """ggml's own `CUDA error: out of memory`, cuBLAS handles, and Metal's insufficient memory."""
    found: list[LogCandidate] = []
    for e in view.all("cublas_failed")[:1]:
        found.append(
            candidate(
                "library_handle_alloc_failed",
                "likely",
                "cuBLAS could not get its handle or workspace: weights, KV cache and compute buffers left "
                "no room on the card.",
                [cite(e)],
                fatal=True,
                at=e,
                check_first=["free memory on the card after loading"],
                remedy=["one or two layers fewer on the GPU (-ngl)", "a smaller -c or -ub"],
                would_change_my_mind=["plenty of free memory at that moment: then a driver fault"],
            )
        )
    if not found:
        found += [_ggml(view, e) for e in view.all("ggml_cuda_oom")[:1]]
    metal = view.first("metal_oom")
    if metal is not None:
        found.append(_metal(view, metal))
    return found


def _ggml(view: LogView, event: Event) -> LogCandidate:
    phase = view.phase_at(event)
    serving = phase == "serve" or (
        phase is None and event.get("function") in {"alloc", "ggml_cuda_pool_malloc"}
    )
    cause = (
        "runtime_activation_spike"
        if serving
        else "startup_activation_peak"
        if phase == "warmup"
        else "capacity_exhausted"
    )
    return candidate(
        cause,
        "likely" if phase in {"serve", "warmup"} else "suspected",
        f"A temporary buffer for a batch could not be had on the card (function "
        f"{event.get('function') or 'unknown'}): the start left too little room beside weights and KV cache.",
        [cite(event)],
        fatal=True,
        at=event,
        phase=phase,
        check_first=[
            "the length of the prompt that was processed, flash attention on or off, free memory after the "
            "start"
        ],
        remedy=["flash attention on", "a smaller -ub", "a layer or two fewer on the GPU, to leave room"],
        would_change_my_mind=["gigabytes free on that card at that moment"],
    )


def _metal(view: LogView, event: Event) -> LogCandidate:
    in_use, limit = view.last("metal_working_set"), told(view, "limit", "metal_limit")
    numbers = ""
    if in_use is not None:
        numbers = f": {size(in_use.get('used'))} in use of a working set of {size(in_use.get('limit'))}"
    elif limit is not None:
        numbers = f"; the recommended working set is {size(limit)}"
    return candidate(
        "capacity_exhausted",
        "likely" if in_use is not None and in_use.get("used") > in_use.get("limit") else "suspected",
        f"Metal ran out of memory for a command buffer{numbers}: unified memory is full for this model and "
        f"context.",
        [cite(event), *cites([in_use] if in_use else [], 1)],
        fatal=True,
        at=event,
        check_first=["memory pressure of the machine, and the working-set limit (iogpu.wired_limit_mb)"],
        remedy=[
            "a smaller context or model",
            "a smaller -ub",
            "raise iogpu.wired_limit_mb if the machine has memory left",
        ],
        would_change_my_mind=["the same failure with a tiny context"],
    )


RULES: tuple[LogRule, ...] = (pool_full, truncated, no_rewind, runtime)
