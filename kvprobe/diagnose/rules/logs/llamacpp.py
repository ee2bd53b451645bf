"""llama.cpp and its family at start: which of the three kinds of buffer could not be had."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.llamacpp_limits import (
    allocation_limit,
    free_but_refused,
    host_buffer,
    one_block,
)
from kvprobe.diagnose.rules.logs.words import cites, lived_on, size, told, whole
from kvprobe.evidence.events import Event

_HOST_DEVICES: Final = ("CPU", "Host", "host")
_FITS: Final = 0.9
_SMALL_CACHE: Final = 0.1
"""Of the weights: a cache below this is not what fills a card."""
_SMALL_PEAK: Final = 0.03
"""Of weights and KV cache: a compute buffer below this is the last straw, they fill the card."""
_SMALL_BUFFER: Final = 2 * 2**30
_SYCL_LIMIT: Final = 4 * 2**30
_NOTABLE_KV: Final = 2**30


def buffers(view: LogView) -> list[LogCandidate]:
    """The last failed buffer that nothing recovered from; the first when all are fatal."""
    failed = view.all("buffer_failed")
    if not failed:
        return _only_an_allocation(view)
    event = _decisive(view, failed)
    if event is None:
        if _loaded_after(view, failed[-1]):
            return []  # it went on without pipeline copies and loaded
        asked = failed[0].get("asked") or _asked_before(view, failed[0])
        return [_compute(view, failed[0], asked, [cite(failed[0]), *cites(view.all("recovered"), 1)], False)]
    kind = _kind(view, event, failed)
    asked = event.get("asked") or _asked_before(view, event)
    evidence = [cite(event), *cites(_allocations(view, event), 2)]
    limit = view.first("allocation_limit")
    if limit is not None and abs(limit.line - event.line) <= 6:
        return [allocation_limit(limit, event, asked, evidence)]
    fatal = not lived_on(view, event)
    if kind == "kv":
        return [_kv(view, event, asked, evidence, fatal)]
    if kind == "compute":
        return [_compute(view, event, asked, evidence, fatal)]
    return [_weights(view, event, asked, evidence, fatal)]


def _loaded_after(view: LogView, event: Event) -> bool:
    """The engine served, or set up its slots, after this line."""
    slots = any(
        e.get("max_num_seqs") is not None and e.source == event.source and e.line > event.line
        for e in view.all("config")
    )
    return slots or lived_on(view, event)


def _decisive(view: LogView, failed: list[Event]) -> Event | None:
    recovered = view.last("recovered")
    if recovered is not None:
        failed = [e for e in failed if e.line > recovered.line or e.source != recovered.source]
    return failed[0] if failed else None


def _kind(view: LogView, event: Event, failed: list[Event]) -> str:
    near = [e for e in failed if e.source == event.source and 0 <= e.line - event.line <= 8]
    kinds = [str(e.get("what")) for e in near]
    if "kv" in kinds:
        return "kv"
    if event.get("what") == "tensors":
        made = any(e.get("what") == "model" for e in view.all("buffer") if e.line < event.line)
        context = any(e.get("n_ctx") is not None for e in view.all("config") if e.line < event.line)
        return "kv" if "weights" not in kinds and made and context else "weights"
    return str(event.get("what"))


def _allocations(view: LogView, event: Event) -> list[Event]:
    return [
        e for e in view.all("alloc_failed") if e.source == event.source and -1 <= event.line - e.line <= 6
    ]


def _asked_before(view: LogView, event: Event) -> float | None:
    near = [e.get("asked") for e in _allocations(view, event) if e.get("asked") is not None]
    return near[-1] if near else None


def _on_host(view: LogView, event: Event) -> bool:
    device = str(event.get("device") or "")
    backends = {e.get("backend") for e in _allocations(view, event)}
    return backends == {"cpu"} or (not backends and any(h in device for h in _HOST_DEVICES))


def _free(view: LogView, event: Event) -> float | None:
    named = str(event.get("device") or "").replace(" ", "")
    for e in view.all("device"):
        if named and e.get("name") == named and e.get("free") is not None:
            return float(e.get("free"))
    return None


def _weights(
    view: LogView, event: Event, asked: float | None, evidence: list[Evidence], fatal: bool
) -> LogCandidate:
    free, offload = _free(view, event), view.last("offload")
    if _on_host(view, event):
        return host_buffer(event, asked, evidence, fatal)
    if "SYCL" in str(event.get("device")) and asked is not None and asked > _SYCL_LIMIT:
        return one_block(event, asked, free, evidence, fatal)
    if free is not None and asked is not None and asked <= _FITS * free:
        return free_but_refused(event, asked, free, evidence, fatal)
    against = f" with {size(free)} free on it" if free is not None else ""
    if offload is not None:
        evidence = [*evidence, cite(offload)]
        need, there = size(offload.get("required")), size(offload.get("available"))
        against += f"; the model needs {need}, {there} are available"
    return candidate(
        "weights_plus_fixed_too_large",
        "suspected" if view.all("nvmap_refused") else _sure_of_weights(asked, free),
        f"The weights do not fit: one buffer of {size(asked)} was refused on "
        f"{event.get('device') or 'the device'}{against}.",
        evidence,
        fatal=fatal,
        at=event,
        phase="load",
        check_first=["the file size of the model against the free memory of each card, before the context"],
        remedy=[
            "put fewer layers on the GPU (-ngl), or split over more cards (--tensor-split)",
            "a smaller quantisation of the model",
        ],
        would_change_my_mind=["the same buffer refused on an empty, larger card: then a limit of the driver"],
        excludes={"logical_kv_too_large": "the weights failed before any KV cache was made"},
    )


def _sure_of_weights(asked: float | None, free: float | None) -> Confidence:
    """A small buffer that fails, with free memory unknown, tells of a card that was full before."""
    if free is not None and asked is not None:
        return "certain" if asked > free else "likely"
    return "suspected" if asked is not None and asked < _SMALL_BUFFER else "likely"


def _kv(
    view: LogView, event: Event, asked: float | None, evidence: list[Evidence], fatal: bool
) -> LogCandidate:
    slots, context = told(view, "max_num_seqs"), told(view, "n_ctx")
    context = context or told(view, "max_model_len")
    trained = told(view, "trained_len")
    many = slots is not None and slots > 1
    shared = f", here for {whole(slots or 0)} slots" if many else ""
    length = f" for a context of {whole(context)} tokens" if context else ""
    default = " (the model's full trained length)" if context and trained and context == trained else ""
    if not many and _little_left(view, event, asked):
        return _weights_first(view, event, asked, evidence, fatal)
    return candidate(
        "reservation_policy_waste" if many else "max_model_len_exceeds_pool",
        # A small cache that fails, and the weights beside it not told: they may be what fills the card.
        "likely"
        if (slots is not None or context) and ((asked or 0) >= _NOTABLE_KV or _on_device(view, event))
        else "suspected",
        f"The KV cache{length}{default} needs one buffer of {size(asked)}, which was refused: llama.cpp "
        f"reserves the whole context at start{shared}, whatever "
        f"the requests use.",
        evidence,
        fatal=fatal,
        at=event,
        phase="profile",
        check_first=["-c and -np against the longest request that really comes"],
        remedy=[
            f"a smaller -c: half of it frees {size(asked / 2 if asked else None)}",
            "-ctk q8_0 -ctv q8_0 (about half the bytes), flash attention on",
            "fewer slots (-np), or --no-kv-offload",
        ],
        would_change_my_mind=["the weights already fail to load without any context"],
        excludes={"weights_plus_fixed_too_large": "the weights were loaded; the KV buffer was refused"},
    )


def _on_device(view: LogView, event: Event) -> float:
    """Bytes of weights on the device that refused."""
    near = _allocations(view, event)
    index = next((e.get("device") for e in near if isinstance(e.get("device"), int)), None)
    held = [e for e in view.all("buffer") if e.get("what") == "model" and e.get("size")]
    names = {str(e.get("device")) for e in held if not str(e.get("device")).startswith(_HOST_DEVICES)}
    mine = {n for n in names if index is not None and n.endswith(str(index))} or names
    return sum(float(e.get("size")) for e in held if e.get("device") in mine)


def _little_left(view: LogView, event: Event, asked: float | None) -> bool:
    """A cache that is small beside the weights: what it lacks, they took."""
    weights = _on_device(view, event)
    return asked is not None and weights > 0 and asked < _SMALL_CACHE * weights


def _weights_first(
    view: LogView, event: Event, asked: float | None, evidence: list[Evidence], fatal: bool
) -> LogCandidate:
    weights = _on_device(view, event)
    return candidate(
        "weights_plus_fixed_too_large",
        "suspected",
        f"{size(weights)} of weights are on the device and leave no room even for a KV cache of "
        f"{size(asked)}.",
        evidence,
        fatal=fatal,
        at=event,
        phase="profile",
        check_first=["what is free on that card after the weights, against the KV cache"],
        remedy=[
            "fewer layers on the GPU (-ngl), or another --tensor-split",
            "a smaller quantisation of the model",
            "a smaller -c, if the cache lacks only a little",
        ],
        would_change_my_mind=["gigabytes free after the weights: then the cache is too large"],
    )


def _compute(
    view: LogView, event: Event, asked: float | None, evidence: list[Evidence], fatal: bool
) -> LogCandidate:
    batch, attention = (
        told(view, "ubatch"),
        [e.get("flash_attention") for e in view.all("config") if e.get("flash_attention")],
    )
    without = bool(attention) and attention[-1] in {"0", "disabled", "false"}
    detail = f" for a micro-batch of {whole(batch)} tokens" if batch else ""
    kv = [
        e.get("size") for e in view.all("kv_size", "buffer") if e.name == "kv_size" or e.get("what") == "KV"
    ]
    held = _on_device(view, event) + sum(k for k in kv if k)
    beside = f"; the KV cache already holds {size(sum(k for k in kv if k))}" if kv else ""
    return candidate(
        "startup_activation_peak",
        "suspected" if asked is None or asked < (_SMALL_PEAK * held or _NOTABLE_KV) else "likely",
        f"The compute buffer of the worst-case graph ({size(asked)}{detail}) was refused on "
        f"{event.get('device') or 'the device'}; weights and KV cache were there already{beside}.",
        evidence,
        fatal=fatal,
        at=event,
        phase="warmup",
        check_first=["-ub and -b, flash attention, and pipeline copies (n_copies=4 with several cards)"],
        remedy=[
            "a smaller -ub (the buffer falls with it)",
            "-fa on: without it the buffer grows with the context"
            if without
            else "flash attention on, if it is off",
            "a smaller -c or fewer layers on that card, so that it keeps room",
        ],
        would_change_my_mind=["the same with -ub 64: then weights and KV alone fill the card"],
    )


def _only_an_allocation(view: LogView) -> list[LogCandidate]:
    """A `cudaMalloc failed` alone, as in an excerpt: the kind of buffer is unknown."""
    limit = view.first("allocation_limit")
    events = [e for e in view.all("alloc_failed") if not lived_on(view, e)]
    if limit is not None:
        return [allocation_limit(limit, limit, told(view, "asked", "alloc_failed"), cites(events, 2))]
    if not events:
        return []
    event = events[0]
    if event.get("backend") == "cpu":
        return [host_buffer(event, event.get("asked"), [cite(event)], True)]
    loading = any(e.phase == "load" for e in view.events if e.source == event.source and e.line < event.line)
    made = any(e.get("what") == "model" for e in view.all("buffer") if e.line < event.line)
    if loading and not made:
        return [_weights(view, event, event.get("asked"), [cite(event)], True)]
    return [
        candidate(
            "capacity_exhausted",
            "suspected",
            f"A buffer of {size(event.get('asked'))} was refused; the line that says which kind (weights, "
            f"KV cache or compute) is not in the excerpt.",
            [cite(event)],
            fatal=True,
            at=event,
            check_first=["the two lines after it"],
            remedy=["fewer layers on the GPU, a smaller context, a smaller -ub"],
            would_change_my_mind=["`failed to allocate buffer for kv cache` or `… compute buffers` after it"],
        )
    ]


RULES: tuple[LogRule, ...] = (buffers,)
