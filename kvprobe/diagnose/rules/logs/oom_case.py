"""One out-of-memory message with everything the log knows around it: numbers, verdict, phase, engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kvprobe.diagnose.fragmentation import OomNumbers, Verdict, judge
from kvprobe.diagnose.log_site import Site, site_of
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.evidence.events import Event
from kvprobe.summary.units import size

_FRACTION_FLAG: Final = {
    "sglang": "`--mem-fraction-static`",
    "trtllm": "`free_gpu_memory_fraction`",
    "lmdeploy": "`--cache-max-entry-count`",
    "tgi": "`--cuda-memory-fraction`",
}
_BATCH_FLAG: Final = {
    "sglang": "`--chunked-prefill-size`",
    "trtllm": "`--max_num_tokens`",
    "lmdeploy": "`--max-prefill-token-num`",
    "tgi": "`--max-batch-prefill-tokens`",
}
_SEQUENCES_FLAG: Final = {
    "sglang": "`--max-running-requests`",
    "trtllm": "`--max_batch_size`",
    "lmdeploy": "`--max-batch-size`",
    "tgi": "`--max-batch-size`",
}
POOL_ENGINES: Final = frozenset({"vllm", "sglang", "trtllm", "lmdeploy", "tgi"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OomCase:
    """`weights` are the bytes that the engine said it loaded before this event."""

    view: LogView
    event: Event
    numbers: OomNumbers
    verdict: Verdict
    site: Site
    weights: int | None
    utilisation: float | None

    @property
    def pool_engine(self) -> bool:
        return self.site.engine in POOL_ENGINES

    @property
    def starting(self) -> bool:
        return self.site.phase in ("load", "profile", "capture", "warmup")

    def share(self, amount: int | None) -> float | None:
        """Of the card."""
        return None if amount is None or not self.numbers.total else amount / self.numbers.total

    @property
    def fraction_flag(self) -> str:
        """The option that sizes this engine's pool."""
        return _FRACTION_FLAG.get(self.site.engine or "", "`--gpu-memory-utilization`")

    @property
    def batch_flag(self) -> str:
        """The options that bound one step of this engine."""
        return _BATCH_FLAG.get(self.site.engine or "", "`--max-num-batched-tokens`")

    @property
    def sequences_flag(self) -> str:
        return _SEQUENCES_FLAG.get(self.site.engine or "", "`--max-num-seqs`")

    def lacks(self) -> str:
        """The arithmetic of the message in words."""
        n, v = self.numbers, self.verdict
        asked = f"{size(n.requested)} asked"
        if n.free is None:
            return asked + self._most_free()
        parts = f"{asked}, {size(n.free)} free"
        if n.unallocated is not None:
            parts += f" + {size(n.unallocated)} in pieces"
        if v.margin is not None:
            word = f"{size(v.deficit)} short" if v.margin < 0 else f"{size(v.margin)} to spare"
            parts += f" = {word}"
        if n.total:
            parts += f" on a card of {size(n.total)}"
            if n.allocated is not None:
                parts += f" with {size(n.allocated)} allocated"
        return parts

    def _most_free(self) -> str:
        """Without the free bytes: how much can have been free at most."""
        n, v = self.numbers, self.verdict
        if v.most_free is None:
            return ""
        held = (n.allocated or 0) + (n.unallocated or 0)
        return (
            f"; how much was free is not said: at most {size(v.most_free)}, as this process holds "
            f"{size(held)} of {size(n.total or 0)}"
        )

    def evidence(self, *more: Event | None) -> list[Evidence]:
        told = [cite(e) for e in more if e is not None]
        frame = self.site.frames[-1] if self.site.frames else None
        outer = [cite(frame, "function", "site")] if frame is not None and not told else []
        return [cite(self.event), *told, *outer]

    def found(
        self,
        cause: str,
        confidence: Confidence,
        why: str,
        *,
        evidence: list[Evidence] | None = None,
        root: bool = True,
        excludes: dict[str, str] | None = None,
        **told: list[str],
    ) -> LogCandidate:
        return candidate(
            cause,
            confidence,
            why,
            evidence or self.evidence(),
            fatal=True,
            root=root,
            at=self.event,
            phase=self.site.phase,
            excludes=excludes,
            check_first=told.get("check_first", []),
            remedy=told.get("remedy", []),
            would_change_my_mind=told.get("would_change_my_mind", []),
        )


def case_of(view: LogView, event: Event) -> OomCase:
    numbers = OomNumbers(
        requested=int(event.get("requested") or 0),
        total=event.get("total"),
        free=event.get("free"),
        allocated=event.get("allocated"),
        unallocated=event.get("reserved_unallocated"),
        own_process=_own_process(event),
        others=event.get("others"),
        allowed=event.get("allowed") if event.get("backend") != "mps" else None,
    )
    return OomCase(
        view=view,
        event=event,
        numbers=numbers,
        verdict=judge(numbers),
        site=site_of(view, event),
        weights=_weights_before(view, event),
        utilisation=setting(view, "gpu_memory_utilization"),
    )


def _own_process(event: Event) -> int | None:
    """What the driver counts to this process; less than PyTorch holds is no count (MIG, containers)."""
    told, held = event.get("own_process"), event.get("allocated") or 0
    return told if isinstance(told, int) and told >= 0.9 * held else None


def _weights_before(view: LogView, event: Event) -> int | None:
    told = [e for e in view.all("weights_loaded") if (e.source, e.line) < (event.source, event.line)]
    found = [b for e in told if isinstance(b := e.get("weights"), int)]
    return found[-1] if found else None


def setting(view: LogView, name: str) -> Any:
    """A setting as the log gives it (the last line that has it), null when none has."""
    told = [e.get(name) for e in view.all("config") if e.get(name) is not None]
    return told[-1] if told else None
