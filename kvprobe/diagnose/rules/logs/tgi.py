"""Text-generation-inference: the warm-up that does not fit, and requests that it refuses."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, told, whole
from kvprobe.evidence.events import Event

_WEIGHTS_SHARE: Final = 0.92
_TINY_WARMUP: Final = 512
_USUAL_WARMUP: Final = 4096
_SMALL_PIECE: Final = 0.05
"""Of the card: a card that cannot give even this much is full before the warm-up's own tensors."""


def warmup(view: LogView) -> list[LogCandidate]:
    """`Not enough memory to handle N prefill tokens`: the batch is too large, or nothing was left at all."""
    event = view.first("warmup_no_memory")
    if event is None:
        return []
    tokens = event.get("prefill") or event.get("tokens") or 0
    oom = [e for e in view.all("torch_oom") if e.get("total") and e.get("allocated")]
    share = oom[-1].get("allocated") / oom[-1].get("total") if oom else None
    small = bool(oom) and (oom[-1].get("requested") or 0) < _SMALL_PIECE * oom[-1].get("total")
    full = share is not None and share >= _WEIGHTS_SHARE and small and tokens <= _USUAL_WARMUP
    filled = f"; PyTorch already holds {percent(share)} of the card" if share is not None else ""
    evidence = [cite(event), *cites(oom[-1:])]
    if tokens <= _TINY_WARMUP or full:
        # Without the card's numbers another process explains a tiny warm-up that fails as well.
        return [_weights(event, evidence, tokens, filled, "suspected" if share is None else "likely")]
    light = share is not None and share < _WEIGHTS_SHARE
    return [_peak(event, evidence, tokens, filled, "likely" if light else "suspected")]


def _weights(
    event: Event, evidence: list[Evidence], tokens: int, filled: str, sure: Confidence
) -> LogCandidate:
    return candidate(
        "weights_plus_fixed_too_large",
        sure,
        f"Even a warm-up of {whole(tokens)} prefill tokens does not fit{filled}: the weights leave no room.",
        evidence,
        fatal=True,
        at=event,
        phase="warmup",
        check_first=["bytes of the weights in the loaded precision against one card"],
        remedy=["quantise (--quantize), or more shards (--num-shard)", "a larger card"],
        would_change_my_mind=["free memory of several GiB after loading"],
    )


def _peak(event: Event, evidence: list[Evidence], tokens: int, filled: str, sure: Confidence) -> LogCandidate:
    return candidate(
        "startup_activation_peak",
        sure,
        f"The warm-up pass of {whole(tokens)} prefill tokens does not fit beside the weights{filled}.",
        evidence,
        fatal=True,
        at=event,
        phase="warmup",
        check_first=["free memory after loading, against --max-batch-prefill-tokens"],
        remedy=[
            "a lower --max-batch-prefill-tokens (and --max-input-length): the peak falls with it",
            "quantise, or more shards",
        ],
        would_change_my_mind=["the same failure with a few hundred prefill tokens: then the weights"],
    )


def overloaded(view: LogView) -> list[LogCandidate]:
    """Refusals for a full queue (TGI, Ollama, the reference server)."""
    events = [e for e in view.all("refused") if e.get("reason") in {"queue", "slots"}]
    if not events:
        return []
    pool = told(view, "tokens", "pool_size")
    return [
        candidate(
            "queue_limit",
            "likely",
            f"Requests were refused {sum(e.repeats for e in events)} times because a configured limit of "
            f"concurrent or queued requests was reached.",
            cites(events, 2),
            fatal=False,
            at=events[0],
            phase="serve",
            check_first=[
                "--max-concurrent-requests, OLLAMA_MAX_QUEUE or --max-num-seqs against the offered load"
            ],
            remedy=[
                "raise the limit if the pool has room"
                + (f" (it holds {whole(pool)} tokens)" if pool else ""),
                "another replica",
            ],
            would_change_my_mind=["a full KV pool at that time"],
        )
    ]


RULES: tuple[LogRule, ...] = (warmup, overloaded)
