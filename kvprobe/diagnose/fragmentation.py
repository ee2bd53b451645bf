"""When is an out-of-memory really fragmentation? PyTorch's numbers decide, not its advice sentence.

Source of the facts: PyTorch `c10/cuda/CUDACachingAllocator.cpp`. Before the message is printed, the
allocator has searched its free blocks, tried the driver, given every fully free segment back and tried
again. "Reserved but unallocated" is thus only what lies in partly used segments: the stranded part. The
size it asked for is printed after rounding to a segment (up to 1 MiB prints 2 MiB, up to 10 MiB prints
20 MiB, more is rounded up to 2 MiB).

Symbols (bytes): R asked, T total, F free, A allocated, U reserved and not allocated, P this process by the
driver, O = T - F - P other processes, N = P - A - U of this process outside PyTorch. Without P only the
sum O + N = T - F - A - U is known.

The ratio reserved/allocated, which PyTorch's own hint names, is not used: it ignores R and F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MIB: Final = 2**20
GIB: Final = 2**30

Step = Literal["0", "0b", "1", "3", "4", "5a", "5b", "5c", "none"]

BOGUS_BYTES: Final = 2**60
BOGUS_FACTOR: Final = 64
DRIVER_SLACK_BYTES: Final = 2 * MIB
CONTEXT_BYTES: Final = GIB
CONTEXT_SHARE: Final = 0.02
SMALL_CARD_BYTES: Final = 16 * GIB
NOTABLE_SHARE: Final = 0.01
"""What others hold below this share of the card is a display or a context, not the reason."""
MARGIN_SHARE: Final = 0.01
MARGIN_SHARE_SMALL: Final = 0.02
_WHOLE_CARD: Final = 0.98
"""A fraction of (nearly) one is printed by some servers and limits nothing."""
FULL_ALLOCATED: Final = 0.90
FULL_PROCESS: Final = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class OomNumbers:
    """What one message carries, bytes; null where the wording does not say it.

    `others` is the sum of the clauses that name other processes."""

    requested: int
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    own_process: int | None = None
    others: int | None = None
    allowed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`step` is the row of the rule that decides. `margin` = F + U - R (bytes, negative when it is short);
    `outside` is what others (and, without P, non-PyTorch memory) hold beyond a normal context;
    `outside_decides`: that amount would have been enough. `full`: the card is full by A or P, so that
    behind fragmentation stands the budget (step 6). `limited`: a process fraction was the limit.
    `most_free`: where the wording has no free bytes, T - A - U, more than which cannot be free; then step 4
    means that even that is too little, and `none` that it would have been enough."""

    step: Step
    margin: int | None = None
    outside: int | None = None
    outside_decides: bool = False
    own_process_known: bool = False
    full: bool = False
    limited: bool = False
    most_free: int | None = None

    @property
    def deficit(self) -> int:
        """What was missing, bytes; 0 when the pieces add up."""
        return max(0, -(self.margin or 0))

    @property
    def fragmented(self) -> bool:
        return self.step in ("5a", "5b")

    @property
    def plainly_short(self) -> bool:
        """Step 4 and its relative 5c: capacity first."""
        return self.step in ("4", "5c")


def judge(n: OomNumbers) -> Verdict:
    """The rule, step by step; `none` when the message carries too little for any step."""
    if n.requested >= BOGUS_BYTES or (n.total and n.requested > BOGUS_FACTOR * n.total):
        return Verdict(step="0")
    if n.total and ((n.free or 0) > n.total or (n.allocated or 0) > 1.02 * n.total):
        return Verdict(step="1" if n.requested > max(n.total, n.free or 0) else "0b")
    if n.total and n.requested > n.total:
        return Verdict(step="1", margin=n.total - n.requested)
    if n.free is None:
        return _without_free(n)
    return _with_free(n, *_limits(n))


def _without_free(n: OomNumbers) -> Verdict:
    """A wording without the free bytes (XPU since 2.6, an excerpt that is cut off): what is missing is not
    zero. T - A - U bounds F from above, so "too small" can be proven and "full" cannot."""
    if n.total is None or n.allocated is None:
        return Verdict(step="none")
    unallocated = n.unallocated or 0
    most = max(0, n.total - n.allocated - unallocated)
    margin = most + unallocated - n.requested
    if margin < 0:
        return Verdict(step="4", margin=margin, full=_full(n), most_free=most)
    return Verdict(step="none", full=_full(n), most_free=most)


def _limits(n: OomNumbers) -> tuple[int, int, bool]:
    """Step 2: free bytes and total as far as this process may go, and whether its fraction is the limit."""
    free, total = n.free or 0, n.total or 0
    held = (n.allocated or 0) + (n.unallocated or 0)
    if n.allowed is None or held + n.requested <= n.allowed or n.allowed >= _WHOLE_CARD * total:
        return free, total, False
    return min(free, max(0, n.allowed - held)), n.allowed, True


def _with_free(n: OomNumbers, free: int, total: int, limited: bool) -> Verdict:
    if free >= n.requested + DRIVER_SLACK_BYTES:
        return Verdict(step="3", margin=free + (n.unallocated or 0) - n.requested)
    margin = free + (n.unallocated or 0) - n.requested
    outside = _outside(n)
    step = _band(n, free, total, margin)
    needed = max(0, -margin) if step == "4" else round(5 * NOTABLE_SHARE * total)
    return Verdict(
        step=step,
        margin=margin,
        outside=outside,
        outside_decides=step in ("4", "5c") and not limited and bool(outside) and (outside or 0) >= needed,
        own_process_known=n.own_process is not None,
        full=_full(n),
        limited=limited,
    )


def _band(n: OomNumbers, free: int, total: int, margin: int) -> Step:
    if margin < 0 or free >= n.requested:
        return "4"
    if (n.unallocated or 0) >= n.requested:
        return "5a"
    share = MARGIN_SHARE_SMALL if total < SMALL_CARD_BYTES else MARGIN_SHARE
    return "5b" if margin >= share * total else "5c"


def _outside(n: OomNumbers) -> int | None:
    """Bytes that this process's PyTorch does not hold, beyond a normal context (1 GiB or 2 % of T)."""
    if n.total is None or n.free is None or n.allocated is None:
        return n.others
    if n.own_process is not None:
        rest = n.total - n.free - n.own_process
        seen = max(n.others or 0, rest)
        return seen if seen >= NOTABLE_SHARE * n.total else 0
    rest = n.total - n.free - n.allocated - (n.unallocated or 0)
    return max(n.others or 0, rest - max(CONTEXT_BYTES, round(CONTEXT_SHARE * n.total)), 0)


def _full(n: OomNumbers) -> bool:
    if not n.total:
        return False
    by_allocated = (n.allocated or 0) >= FULL_ALLOCATED * n.total
    return by_allocated or (n.own_process or 0) >= FULL_PROCESS * n.total
