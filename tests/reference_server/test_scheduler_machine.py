"""Scheduler, allocator, prefix cache and preemption together, with a model that only writes prefixes.

What the engine core does in a step is done here without torch, so that thousands of steps cost
little: every request must end, with nothing held at the end, whatever came and went in between.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_server.kv.prefix import PrefixHasher
from reference_server.scheduler import Scheduler, Step
from reference_server.sequence import FinishReason, Sequence
from tests.reference_server.memory_model import (
    ALLOCATORS,
    BACKED,
    Memory,
    check_usage,
    make_allocator,
    make_manager,
    make_sequence,
)

LONGEST = 16
"""Tokens of the longest request; the pool always holds one."""


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, steps and aborts at random."""

    @initialize(
        kind=st.sampled_from((*ALLOCATORS, *BACKED)),
        size=st.sampled_from([1, 2, 4]),
        spare=st.integers(0, 12),
        caching=st.booleans(),
        host_blocks=st.sampled_from([None, 2, 100]),
        budget=st.sampled_from([1, 3, 40]),
        seqs=st.sampled_from([1, 2, 40]),
    )
    def start(
        self, kind: str, size: int, spare: int, caching: bool, host_blocks: int | None, budget: int, seqs: int
    ) -> None:
        self.kind = kind
        slots = LONGEST + spare * size
        if kind in ("contiguous", "contiguous-backed"):
            slots = max(slots, 2 * LONGEST)
        self.memory = Memory(1 if kind.startswith("contiguous") or kind == "pieces" else size)
        self.allocator = make_allocator(kind, slots, size, self.memory, caching=caching)
        self.manager = make_manager(self.allocator, self.memory, host_blocks)
        self.scheduler = Scheduler(
            self.allocator, self.manager, max_num_seqs=seqs, max_num_batched_tokens=budget
        )
        self.hasher = PrefixHasher(self.allocator.block_size)
        self.names = itertools.count()
        self.open: list[Sequence] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=10), wanted=st.integers(1, 6))
    def arrive(self, tokens: list[int], wanted: int) -> None:
        sequence = make_sequence(f"s{next(self.names)}", tokens, self.hasher, max_tokens=wanted)
        self.open.append(sequence)
        self.scheduler.add(sequence)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(self.open)), FinishReason.ABORT)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finished = reason
        self.open.remove(sequence)
        self.scheduler.remove(sequence)

    @rule(token=st.integers(0, 1))
    def step(self, token: int) -> None:
        step = self.scheduler.schedule()
        assert sum(item.count for item in step.work) <= self.scheduler.max_num_batched_tokens
        assert len(self.scheduler.running) <= self.scheduler.max_num_seqs
        self.check_preempted(step)
        for sequence in step.failed:
            assert self.kind == "pieces", "only memory in pieces refuses one that is alone"
            self.finish(sequence, FinishReason.ERROR)
        for item in step.work:
            self.compute(item.sequence, item.count, token)

    def check_preempted(self, step: Step) -> None:
        for sequence in step.preempted:
            assert len(sequence.block_table) == 0
            assert sequence.num_computed == 0
        if step.preempted:
            assert not step.admitted

    def compute(self, sequence: Sequence, count: int, token: int) -> None:
        for index in range(sequence.num_computed, sequence.num_computed + count):
            self.memory.write(sequence, index)
        sequence.num_computed += count
        self.allocator.commit(sequence)
        if not sequence.num_pending:
            sequence.tokens.append(token)
            if sequence.num_output_tokens == sequence.max_tokens:
                self.finish(sequence, FinishReason.LENGTH)

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        running = list(self.scheduler.holders())
        self.allocator.check(running)
        self.manager.check()
        check_usage(self.allocator, running)
        for sequence in running:
            self.memory.check(sequence)

    def teardown(self) -> None:
        """Whoever is left gets to the end."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(4000):
            if not self.open:
                break
            self.step(0)
        assert not self.open, "somebody waits for ever"
        self.books_balance()
        usage = self.allocator.usage(())
        assert usage.blocks_used == 0
        assert usage.blocks_free + usage.blocks_cached == usage.blocks_total
        assert self.manager.usage().blocks_used == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
