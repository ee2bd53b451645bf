"""Memory is refused although enough bytes are free: they do not lie in one piece."""

from __future__ import annotations

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary.units import percent, size, whole

FAILURES = "engine.kv_allocation_failures_total"
IN_PIECES = "engine.kv_allocation_failures_fragmented_total"
FREE, LARGEST = "engine.kv_free_bytes", "engine.kv_largest_free_region_bytes"
WAITING = "engine.requests_waiting"
MIN_FAILURES = 5
SOME, MOST = 0.2, 0.5
"""Of all refusals: from the one on fragmentation is a cause, from the other on it is the cause."""


def fragmented(view: View) -> Outcome:
    """Needs: refusals that the engine itself counts as made with enough bytes free, and requests that
    waited or failed. Refuted where most refusals met a pool without the bytes: that is pressure."""
    pieces, failures = view.increase(IN_PIECES), view.increase(FAILURES)
    if pieces is None or failures is None or pieces.value < MIN_FAILURES or failures.value <= 0:
        return Outcome()
    share = pieces.value / failures.value
    waited = sum(1 for _, v in view.load_series(WAITING) if v > 0)
    if share < SOME or not (waited or view.summary.failures):
        return Outcome()
    told = [
        evidence(
            IN_PIECES,
            f"{whole(pieces.value)} of {whole(failures.value)} refused allocations had enough bytes free",
            fragmented=(pieces.value, "count"),
            refused=(failures.value, "count"),
        )
    ]
    worst = _worst(view)
    if worst is not None:
        free, largest = worst
        told.append(
            evidence(
                f"{FREE}, {LARGEST}",
                f"{size(free)} free, the largest piece {size(largest)}",
                free=(free, "B"),
                largest_free_region=(largest, "B"),
            )
        )
    found = finding(
        "allocator_fragmentation",
        "certain" if share >= MOST else "likely",
        f"{whole(pieces.value)} of {whole(failures.value)} refused allocations ({percent(share)}) met enough "
        "free bytes, but not in one piece.",
        told,
        check_first=["the allocator: regions of unequal length fragment, pages of one size do not"],
        remedy=["an allocator of pages (bundled server: --allocator paged)", "requests of more equal length"],
        would_change_my_mind=["a largest free piece as large as what is asked for"],
    )
    excludes = {}
    if share >= MOST:
        excludes = {"kv_pool_pressure": f"{percent(share)} of the refusals met enough free bytes"}
    failed = frozenset({"in_band_error", "status"})
    return Outcome(
        candidates=[Candidate(finding=found, timing_free=True, excludes=excludes, explains=failed)]
    )


def _worst(view: View) -> tuple[float, float] | None:
    """(free bytes, largest piece) where the two lie furthest apart."""
    largest = dict(view.load_series(LARGEST))
    pairs = [(v, largest[t]) for t, v in view.load_series(FREE) if t in largest and v > 0]
    return max(pairs, key=lambda p: p[0] - p[1], default=None)
