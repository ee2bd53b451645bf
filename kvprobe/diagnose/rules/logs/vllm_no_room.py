"""vLLM found no room for its KV pool. Its message always says "increase gpu_memory_utilization"; whether
that can help is arithmetic: it can only where weights, activations and the rest leave a part of the card
unused. Else the largest term that is out of proportion is the cause.
"""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs import model_size
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.diagnose.rules.logs.vllm_room import Room, least_utilisation, room_of
from kvprobe.evidence.events import Event
from kvprobe.summary.units import size

_GIB: Final = 2**30
_HIGHEST: Final = 0.97
"""The highest utilisation that leaves a driver and a context their place."""
_LOW_SETTING: Final = 0.85
_HIGH_SETTING: Final = 0.9
_PEAK_LARGE: Final = 0.22
"""Of the budget: an activation peak above it is out of proportion to a text model's pass."""
_GRAPHS_ABSURD: Final = 0.5
_GRAPHS_ABSURD_BYTES: Final = 30 * _GIB
_STRIP: Final = 0.15
_MOST_OF_BUDGET: Final = 0.8
_NON_TORCH_LARGE: Final = 0.08
_NON_TORCH_WIDE: Final = 0.15
_OTHERS_BYTES: Final = 2 * _GIB


def no_room(view: LogView) -> list[LogCandidate]:
    """`No available memory for the cache blocks`, or a budget whose rest is not positive."""
    refused = view.first("no_cache_blocks")
    room = room_of(view)
    if refused is None:
        negative = room.kv is not None and room.kv <= 0
        refused = room.told[-1] if negative and room.told else None
        zero = [e for e in view.all("pool_size") if e.get("blocks") == 0]
        refused = zero[0] if refused is None and zero else refused
    if refused is None or view.all("free_below_desired"):
        return []
    return [_Refusal(view, refused, room).judged()]


class _Refusal:
    def __init__(self, view: LogView, event: Event, room: Room) -> None:
        self.view, self.event, self.room = view, event, room

    def judged(self) -> LogCandidate:
        r = self.room
        if self._graphs_wrong():
            return self._graphs()
        if self._charged():
            return self._accounting()
        if self._outside():
            return self._non_torch()
        if self._helps():
            return self._too_low()
        if self._peaky():
            return self._peak()
        if r.graphs and r.graphs > 0 and r.kv is not None and r.kv <= 0 and r.graphs > -r.kv:
            return self._graphs()
        if r.weights is None and r.kv is None:
            return self._bare()
        return self._weights()

    def _bare(self) -> LogCandidate:
        """The refusal alone, without a number of the budget: only the model's name may tell."""
        guess = model_size.estimate(self.view)
        fit = guess.fit(self.room.total) if guess is not None else None
        high = self.room.utilisation is not None and self.room.utilisation >= _HIGH_SETTING
        if fit == "over" or (high and fit != "fits"):
            return self._weights()  # a higher setting cannot help: what fills the budget has to shrink
        ruled_out = ""
        if guess is not None and fit == "fits":
            card = f" on a card of {size(self.room.total)}" if self.room.total else ""
            ruled_out = f" The weights are not the reason: {guess.text}{card}."
        found = self._say(
            UNKNOWN,
            "suspected",
            "The engine found no room for its cache, and no line gives its budget, weights or what else was "
            "on the card: the weights, a low utilisation, another process and a wrong sum of the engine all "
            f"end so.{ruled_out}",
            ["`nvidia-smi` before the start: who holds the card"],
            [
                "collect the engine's lines from its start: weights, activation peak, utilisation",
                "collect the command line and the name of the GPU",
            ],
            ["any line with the engine's budget"],
        )
        if ruled_out:
            found.excludes["weights_plus_fixed_too_large"] = ruled_out.strip()
        return found

    def _say(
        self,
        cause: str,
        confidence: Confidence,
        why: str,
        check: list[str],
        remedy: list[str],
        mind: list[str],
    ) -> LogCandidate:
        seen = [cite(self.event), *[cite(e) for e in self.room.told if e is not self.event]]
        return candidate(
            cause,
            confidence,
            why,
            seen,
            fatal=True,
            at=self.event,
            phase="profile",
            check_first=check,
            remedy=remedy,
            would_change_my_mind=mind,
            excludes=self._raising_cannot_help(cause),
        )

    def _raising_cannot_help(self, cause: str) -> dict[str, str]:
        r = self.room
        if cause == "gpu_memory_utilization_too_low" or r.total is None or r.needed is None:
            return {}
        if r.needed < _HIGHEST * r.total:
            return {}
        needed = f"{size(r.needed)} are needed before any cache, of {size(r.total)}"
        return {
            "gpu_memory_utilization_too_low": f"raising it cannot help: {needed}",
        }

    def _graphs_wrong(self) -> bool:
        """Graphs share one pool and take a few GiB: more than that is an estimate gone wrong."""
        r = self.room
        if not r.graphs:
            return False
        return r.graphs > _GRAPHS_ABSURD_BYTES or bool(r.total and r.graphs > _GRAPHS_ABSURD * r.total)

    def _outside(self) -> bool:
        r = self.room
        if r.non_torch is None or r.total is None or r.kv is None:
            return False
        return r.non_torch >= _NON_TORCH_LARGE * r.total and r.non_torch >= -r.kv and r.non_torch > 2 * _GIB

    def _charged(self) -> bool:
        """0.6.3 and 0.6.4: what others held before the start is taken off a budget of its own."""
        r = self.room
        if r.initial_use is None or r.total is None or r.limit is None or r.non_torch is None:
            return False
        return r.initial_use > _OTHERS_BYTES and r.total - r.initial_use >= r.limit

    def _accounting(self) -> LogCandidate:
        r = self.room
        return self._say(
            "engine_accounting_bug",
            "likely",
            f"{size(r.initial_use or 0)} were in use before the start and were taken off this "
            "engine's own budget of "
            f"{size(r.limit or 0)}, although the rest of the card would have held it: releases 0.6.3 "
            "and 0.6.4 count "
            "other processes into the budget.",
            ["the version: mended in 0.6.5"],
            ["upgrade, or raise the utilisation by what the others hold"],
            ["a version that does not charge others' memory"],
        )

    def _helps(self) -> bool:
        """A part of the card lies beyond the budget and would hold a pool."""
        r = self.room
        if r.utilisation is None or r.utilisation >= 0.9:
            return False
        if r.total is not None and r.needed is not None and r.activation is not None:
            return r.needed + 0.01 * r.total < 0.95 * r.total
        if r.total is not None and r.kv is None and r.weights is not None:
            # What ran beside the weights is not told: a wide strip beyond the budget would hold it.
            return r.utilisation * r.total < r.weights + _STRIP * r.total < 0.95 * r.total
        if r.total is not None and r.kv is not None:
            return 0.95 * r.total - r.utilisation * r.total > -r.kv + 0.01 * r.total
        return r.utilisation <= 0.6

    def _peaky(self) -> bool:
        r = self.room
        if r.activation is not None and r.limit is not None:
            fits_without = r.weights is not None and r.weights < 0.8 * r.limit
            return r.activation >= _PEAK_LARGE * r.limit and fits_without
        if r.limit is not None and r.weights is not None and r.kv is not None:
            peak = r.limit - r.weights - r.kv
            return peak >= 0.3 * r.limit and r.weights < 0.65 * r.limit
        return False

    def _multimodal(self) -> bool:
        return bool(self.view.all("mm_budget", "mm_profile_too_short")) or any(
            e.get("limit_mm_per_prompt") for e in self.view.all("config")
        )

    def _graphs(self) -> LogCandidate:
        r = self.room
        graphs = r.graphs or 0
        wrong = self._graphs_wrong()
        return self._say(
            "engine_accounting_bug" if wrong else "cudagraph_memory",
            "likely",
            f"The start reserves {size(graphs)} for CUDA graphs"
            + (", an estimate out of all proportion" if wrong else "")
            + f", and nothing is left for the cache ({r.sum_text()}).",
            ["the same start with `--enforce-eager`, which needs no graphs"],
            [
                f"`--enforce-eager`, or fewer capture sizes: gives up to {size(graphs)} to the cache",
                "`VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0` leaves the estimate out of the budget",
            ],
            ["a graph memory of that size in `Graph capturing finished … took`"],
        )

    def _non_torch(self) -> LogCandidate:
        r = self.room
        amount = r.non_torch or 0
        wide = r.total is not None and amount >= _NON_TORCH_WIDE * r.total
        return self._say(
            "other_process_on_gpu",
            "likely" if wide else "suspected",
            f"{size(amount)} are counted as non-torch memory, far above a context (about 0.5 GiB): "
            "memory of other "
            f"processes on the card was charged to this engine ({r.sum_text()}).",
            ["`nvidia-smi` before the start: memory that is already in use"],
            [f"end what else holds the card: gives up to {size(amount)} back to the pool"],
            ["an empty card before the start"],
        )

    def _too_low(self) -> LogCandidate:
        r = self.room
        least = least_utilisation(self.view, r)
        told = f" ({r.sum_text()})" if r.sum_text() else ""
        hint = f" The smallest utilisation that fits one sequence: {least}." if least else ""
        room = (
            ""
            if r.total is None
            else f", while {size(r.total - (r.limit or 0))} of the card lie beyond the budget"
        )
        return self._say(
            "gpu_memory_utilization_too_low",
            "certain"
            if r.activation is not None
            else "likely"
            if r.weights and r.kv is not None
            else "suspected",
            f"The budget, not the card, is too small{told}{room}.{hint}",
            ["that nothing else needs the rest of the card"],
            [
                f"raise `--gpu-memory-utilization`{f' to at least {least}' if least else ''}: each 0.01 adds "
                f"{size((r.total or 0) / 100) if r.total else '1 % of the card'}",
                "or a smaller peak: `--max-num-batched-tokens`, `--max-model-len`",
            ],
            ["another process that needs what lies beyond the budget"],
        )

    def _peak(self) -> LogCandidate:
        r = self.room
        peak = r.activation
        if peak is None and r.limit is not None and r.weights is not None and r.kv is not None:
            peak = r.limit - r.weights - r.kv
        multimodal = self._multimodal()
        return self._say(
            "multimodal_profiling" if multimodal else "startup_activation_peak",
            # What is left of a budget after weights and cache may be other processes' as well; and a setting
            # for images does not say that they are what is large.
            "likely"
            if r.activation is not None
            and (not multimodal or self.view.all("mm_budget", "mm_profile_too_short"))
            else "suspected",
            f"The profiling pass, not the weights, takes the room: a peak of {size(peak or 0)} "
            f"({r.sum_text()}).",
            [
                "`limit_mm_per_prompt` and `max_pixels`"
                if multimodal
                else "`--max-num-batched-tokens` and `--max-model-len`"
            ],
            [
                "`--limit-mm-per-prompt` with the counts really used (0 for video)"
                if multimodal
                else f"`--max-num-batched-tokens` halved: gives about {size((peak or 0) / 2)} to the cache",
                "`--max-num-seqs` lower",
            ],
            ["the same peak with 2,048 batched tokens"],
        )

    def _weights(self) -> LogCandidate:
        r = self.room
        guess = model_size.estimate(self.view) if r.weights is None else None
        known = r.weights is not None and (
            _much_of(r) if r.kv is None else bool(r.total) or _in_proportion(r)
        )
        told = r.sum_text() or (guess.text if guess else "")
        cannot = ""
        if r.total is not None and r.needed is not None and r.utilisation:
            word = "cannot help" if r.needed >= 0.95 * r.total else "helps little"
            needed = f"{size(r.needed)} are needed before any cache, of {size(r.total)}"
            cannot = f" Raising the utilisation {word}: {needed}."
        return self._say(
            "weights_plus_fixed_too_large",
            "certain"
            if r.activation is not None and r.total is not None and _mostly_weights(r)
            else "likely"
            if known and _mostly_weights(r)
            else "suspected",
            "Weights and what runs beside them leave no room for a cache"
            + (f": {told}." if told else ".")
            + cannot,
            ["weights per GPU against the card's memory"],
            [
                "a quantised checkpoint: 8 bit halves the weights, 4 bit quarters them"
                + (f" ({size(r.weights / 2)} at 8 bit)" if r.weights else ""),
                "`--tensor-parallel-size 2`: halves the weights per GPU",
                "`--max-num-batched-tokens` lower: a smaller activation peak",
            ],
            ["an activation peak or a graph estimate that is larger than the weights"],
        )


def _mostly_weights(room: Room) -> bool:
    """Where the budget is known, weights below half of it are not what fills it."""
    return room.limit is None or (room.weights or 0) >= 0.5 * room.limit


def _much_of(room: Room) -> bool:
    """Without the rest that was left: weights that take most of the budget explain it."""
    return bool(room.limit and room.weights and room.weights >= _MOST_OF_BUDGET * room.limit)


def _in_proportion(room: Room) -> bool:
    """Without the card's size: weights explain a shortfall that is well below them."""
    return room.weights is not None and room.kv is not None and room.weights >= -3 * room.kv


RULES: Final = (no_room,)
