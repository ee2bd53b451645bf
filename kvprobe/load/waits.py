"""The requests under way that already wait for longer than an abort rule allows.

A request that hangs has no row until its time-out fires, and a rule on `ttft` that sees rows alone
would sleep as long. How long it has waited is a lower bound of what its row will say, so the worker
says that much, on its own clock, for as long as it is so. Nothing is kept or written without a rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from kvprobe.evidence.records import Waiting, WaitingRequest
from kvprobe.gates.metrics import FIRST_TOKEN_WAITS, WHOLE_WAITS
from kvprobe.gates.rules import parse_rule
from kvprobe.load.workload_gates import AbortWhen

NS = 1_000_000_000


class Waits:
    """Who is under way in this worker, and who of them has waited for too long."""

    def __init__(self, rules: Sequence[AbortWhen], worker: str, write: Callable[[Waiting], None]) -> None:
        gates = [parse_rule(rule.when, "workload").when for rule in rules]
        self._first_ns = _least_ns([g.limit for g in gates if g.metric in FIRST_TOKEN_WAITS])
        self._whole_ns = _least_ns([g.limit for g in gates if g.metric in WHOLE_WAITS])
        self.wanted = self._first_ns is not None or self._whole_ns is not None
        """Whether any rule looks at them."""
        self._worker = worker
        self._write = write
        self._under_way: dict[str, WaitingRequest] = {}
        self._told = False

    def sent(self, request_id: str, intended_ns: int, sent_ns: int, warmup: bool) -> None:
        """It is under way from now on."""
        if self.wanted:
            self._under_way[request_id] = WaitingRequest(
                request_id=request_id, intended_ns=intended_ns, sent_ns=sent_ns, warmup=warmup
            )

    def first_token(self, request_id: str) -> None:
        """Its first token has come."""
        if (request := self._under_way.get(request_id)) is not None:
            request.first_token = True

    def ended(self, request_id: str) -> None:
        """Its row tells the rest."""
        self._under_way.pop(request_id, None)

    def report(self) -> None:
        """Write who waits for too long now; an empty list once nobody does any more."""
        if not self.wanted:
            return
        now_ns = time.monotonic_ns()
        late = list(self._late(now_ns))
        if late or self._told:
            self._write(Waiting(worker=self._worker, t_ns=now_ns, requests=late))
        self._told = bool(late)

    def _late(self, now_ns: int) -> Iterator[WaitingRequest]:
        for request in self._under_way.values():
            age_ns = now_ns - request.intended_ns  # of the two ages the longer one
            limit_ns = self._whole_ns
            if self._first_ns is not None and not request.first_token:
                limit_ns = self._first_ns if limit_ns is None else min(self._first_ns, limit_ns)
            if limit_ns is not None and age_ns > limit_ns:
                yield request


def _least_ns(limits_s: list[float]) -> int | None:
    return int(min(limits_s) * NS) if limits_s else None
