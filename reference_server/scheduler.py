"""Which sequences compute which tokens in the next step.

NOTE on the algorithm. There are no phases. Each sequence has `tokens` and `num_computed`; a step
gives each as many tokens as it still lacks, within one budget for all:

    tokens        p p p p p p p p g g        p = prompt, g = generated
    num_computed  ------------>              a chunk of a prompt, or
                                ------>      the one token sampled last

Chunked prefill, prefix hits (num_computed starts beyond 0) and steps that mix prefill and decode
follow from that alone.

1. Running sequences first, oldest first. When there is no room for one, the *newest* running
   sequence is preempted, until there is, or until it was the one that wanted room.
2. Then waiting ones, in order, while budget and room last; none in a step that preempted, which
   would give the room just won to someone else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from reference_server.kv.allocator import Allocator, Shortage
from reference_server.kv.preemption import PreemptionManager
from reference_server.sequence import FinishReason, Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`count` tokens of a sequence, from `sequence.num_computed` on."""

    sequence: Sequence
    count: int

    @property
    def completes(self) -> bool:
        """After this step every token is computed, so that the next can be sampled."""
        return self.count == self.sequence.num_pending


@dataclass(slots=True)
class Step:
    """The outcome of one scheduling round."""

    work: list[Scheduled] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    kept_blocks: dict[str, int] = field(default_factory=dict)
    """Blocks of preempted requests that were kept elsewhere, by request id."""
    shortages: list[tuple[Sequence, Shortage]] = field(default_factory=list)
    """Who was refused room, running or waiting, and how much was there."""
    failed: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Owns the queues. Called by the engine thread only."""

    def __init__(
        self,
        allocator: Allocator,
        preemption: PreemptionManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.allocator = allocator
        self.preemption = preemption
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def holders(self) -> Iterator[Sequence]:
        """Sequences that hold memory."""
        return iter(self.running)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, running or waiting, and free its memory."""
        self.take_out(sequence)
        self.preemption.drop(sequence)

    def take_out(self, sequence: Sequence) -> None:
        """Take a sequence out of its queue; its memory stays as it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> Step:
        step = Step()
        budget = self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step, budget)
        return step

    def _schedule_running(self, step: Step) -> int:
        budget = self.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = min(sequence.num_pending, budget)
            if self._make_room(sequence, sequence.num_computed + count, step):
                step.work.append(Scheduled(sequence, count))
                budget -= count
                index += 1
        return budget

    def _make_room(self, sequence: Sequence, num_tokens: int, step: Step) -> bool:
        """Preempt from the newest on until there is room; False when `sequence` itself had to go."""
        while not self.allocator.extend(sequence, num_tokens):
            self._note_shortage(sequence, step)
            victim = self.running.pop()
            step.kept_blocks[victim.request_id] = self.preemption.evict(victim)
            victim.num_preemptions += 1
            self.waiting.appendleft(victim)
            step.preempted.append(victim)
            if victim is sequence:
                self._fail_if_stuck(sequence, step)
                return False
        return True

    def _fail_if_stuck(self, sequence: Sequence, step: Step) -> None:
        """Alone, and twice at the same token without room: there will never be any."""
        if self.running:
            return
        if sequence.stuck_at == len(sequence.tokens):
            self._fail(sequence, step)
        sequence.stuck_at = len(sequence.tokens)

    def _note_shortage(self, sequence: Sequence, step: Step) -> None:
        shortage = self.allocator.last_shortage
        if shortage is not None:
            step.shortages.append((sequence, shortage))

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if not self.preemption.admit(sequence, budget):
                self._note_shortage(sequence, step)
                self._fail_if_alone(sequence, step)
                return
            self.waiting.popleft()
            self.running.append(sequence)
            count = min(sequence.num_pending, budget)
            step.admitted.append(sequence)
            step.work.append(Scheduled(sequence, count))
            budget -= count

    def _fail_if_alone(self, sequence: Sequence, step: Step) -> None:
        """With nobody else running, waiting longer gives no room: fail it rather than spin."""
        if not self.running:
            self._fail(sequence, step)

    def _fail(self, sequence: Sequence, step: Step) -> None:
        self.waiting.remove(sequence)
        sequence.finished = FinishReason.ERROR
        step.failed.append(sequence)
