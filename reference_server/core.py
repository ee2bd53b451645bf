"""The engine without its thread: requests in, one `step()` at a time, tokens out.

Everything here is synchronous and owned by whoever calls `step`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from reference_server.kv.allocator import Allocator, Shortage
from reference_server.kv.prefix import HashChain, PrefixHasher
from reference_server.metrics import Metrics
from reference_server.runner import ModelRunner
from reference_server.scheduler import Scheduler, Step
from reference_server.sequence import FinishReason, Sequence
from reference_server.sparse_log import SparseLog
from reference_server.state import EngineState
from reference_server.statsline import StatsLine
from reference_server.streams import TokenEvent

log = logging.getLogger(__name__)

Output = tuple[str, TokenEvent]
"""Request id and what happened to it."""


class EngineCore:
    """Scheduler, model and metrics together."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        hasher: PrefixHasher,
        metrics: Metrics,
        *,
        bytes_per_token: int,
        prefix_caching: bool,
        check_integrity: bool,
        block_bytes: int | None = None,
        stats_interval_s: float = 10.0,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._hasher = hasher
        self._metrics = metrics
        self._prefix_caching = prefix_caching
        self._check_integrity = check_integrity
        self._sequences: dict[str, Sequence] = {}
        self._stats = StatsLine()
        self._shortages = SparseLog(log)
        self.stats_interval_s = stats_interval_s
        self.state = EngineState(
            self.allocator.usage(()),
            bytes_per_token,
            block_bytes or bytes_per_token * self.allocator.block_size,
            self.allocator.block_size,
        )

    @property
    def allocator(self) -> Allocator:
        return self.scheduler.allocator

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def request_ids(self) -> list[str]:
        """Requests that are not finished."""
        return list(self._sequences)

    def chain(self, cache_salt: str | None) -> HashChain:
        return HashChain(self._hasher, cache_salt)

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.request_id] = sequence
        self.scheduler.add(sequence)
        self._publish_state()

    def abort(self, request_id: str) -> None:
        """Give a request up and free its blocks now; nothing happens when it is finished."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.finished = FinishReason.ABORT
            self._forget(sequence)
            self._publish_state()

    def step(self) -> list[Output]:
        """Schedule, compute, sample. Counters are up to date before the outputs are handed on."""
        began = time.perf_counter()
        step = self.scheduler.schedule()
        self.state.scheduling_s += time.perf_counter() - began
        self._account_scheduling(step)
        sampled = self.runner.run(step.work) if step.work else []
        now = time.monotonic()
        outputs = [self._fail(sequence) for sequence in step.failed]
        for item, token in zip(step.work, sampled, strict=True):
            item.sequence.num_computed += item.count
            self.allocator.commit(item.sequence)
            self._stats.computed(item.count)
            if token is not None:
                outputs.append(self._accept(item.sequence, token, now))
        self.state.steps += 1
        self.state.bytes_read = self.runner.bytes_read_total
        self.state.busy_s = self.runner.busy_seconds_total
        self.state.forward_tokens = self.runner.tokens_total
        self._publish_state()
        if self._check_integrity:
            self.check()
        self._after_step(outputs)
        return outputs

    def _after_step(self, outputs: list[Output]) -> None:
        """Nothing; a place for the faults of `sick.py`, outside of what a traceback of `step` shows."""

    def housekeeping(self) -> None:
        """The periodic log line; when idle, the integrity check too."""
        if not self._stats.due(self.stats_interval_s):
            return
        self.state.unreachable_blocks = self.allocator.unreachable_blocks()
        self._stats.write(self.state)
        if not self.has_work:
            self.check()

    def holders(self) -> Iterator[Sequence]:
        """Sequences that hold KV memory."""
        return self.scheduler.holders()

    def check(self) -> None:
        """Raise `IntegrityError` unless the KV memory's books balance."""
        self.allocator.check(self.holders())
        self.scheduler.preemption.check()

    def _account_scheduling(self, step: Step) -> None:
        now = time.monotonic()
        if step.preempted:
            self._metrics.preemptions.inc(len(step.preempted))
        for sequence in step.preempted:
            self._log_preemption(sequence, step.kept_blocks.get(sequence.request_id, 0))
        for sequence, shortage in step.shortages:
            self._log_shortage(sequence, shortage)
        for sequence in step.admitted:
            if sequence.timeline.scheduled is None:
                sequence.timeline.scheduled = now
                self._account_first_scheduled(sequence, now)
        self._publish_state()
        state = self.state
        state.running_max = max(state.running_max, state.running)
        self._stats.refused(state.usage.failures_total)
        state.usage_ratio_max = max(state.usage_ratio_max, state.usage.ratio)

    def _log_preemption(self, sequence: Sequence, kept_blocks: int) -> None:
        log.warning(
            "preempted %s: no KV blocks left; %s",
            sequence.request_id,
            f"{kept_blocks} blocks swapped out"
            if kept_blocks
            else f"{len(sequence.tokens)} tokens to compute again",
        )
        self._stats.preempted(kept_blocks)

    def _log_shortage(self, sequence: Sequence, shortage: Shortage) -> None:
        self._shortages.warning(
            "no room in the KV cache for %s: %s (running %d, waiting %d; %d such since the last line)",
            sequence.request_id,
            self._sizes(shortage),
            len(self.scheduler.running),
            len(self.scheduler.waiting),
        )

    def _sizes(self, shortage: Shortage) -> str:
        size = self.state.block_bytes
        return (
            f"asked {shortage.asked * size} B, free {shortage.free * size} B, "
            f"largest free region {shortage.largest_free * size} B"
        )

    def _account_first_scheduled(self, sequence: Sequence, now: float) -> None:
        sequence.cached_tokens = sequence.num_computed
        self._metrics.queue_time.observe(now - sequence.timeline.arrived)
        if self._prefix_caching:
            self._metrics.prefix_queries.inc(sequence.num_prompt_tokens)
            self._metrics.prefix_hits.inc(sequence.cached_tokens)
            self._stats.queried(sequence.num_prompt_tokens, sequence.cached_tokens)

    def _accept(self, sequence: Sequence, token: int, now: float) -> Output:
        """Append a sampled token and see whether the request ends with it."""
        may_stop = sequence.may_stop
        sequence.tokens.append(token)
        text = sequence.text.push(token, may_stop=may_stop)
        if token in sequence.stop_tokens or sequence.text.stopped_by is not None:
            sequence.finished = FinishReason.STOP
        elif sequence.num_output_tokens >= sequence.max_tokens:
            sequence.finished = FinishReason.LENGTH
        self._account_token(sequence, now)
        if sequence.finished:
            text += sequence.text.finish()
            self._forget(sequence)
        event = TokenEvent(
            token,
            text,
            sequence.cached_tokens,
            sequence.finished,
            stopped_by=sequence.text.stopped_by,
            logprobs=sequence.last_logprobs,
        )
        return sequence.request_id, event

    def _account_token(self, sequence: Sequence, now: float) -> None:
        timeline, metrics = sequence.timeline, self._metrics
        metrics.generation_tokens.inc()
        self._stats.generated(1)
        if timeline.first_token is None:
            timeline.first_token = now
            metrics.prompt_tokens.inc(sequence.num_prompt_tokens)
            metrics.ttft.observe(now - timeline.arrived)
            metrics.prefill_time.observe(now - (timeline.scheduled or now))
        elif timeline.last_token is not None:
            metrics.inter_token.observe(now - timeline.last_token)
        timeline.last_token = now
        if sequence.finished:
            metrics.e2e.observe(now - timeline.arrived)
            metrics.decode_time.observe(now - timeline.first_token)

    def _fail(self, sequence: Sequence) -> Output:
        self._forget(sequence)
        error = "the KV cache has no room for this request"
        shortage = self.allocator.last_shortage
        log.error(
            "failed %s: %s: %s",
            sequence.request_id,
            error,
            self._sizes(shortage) if shortage else "no room was asked for",
        )
        return sequence.request_id, TokenEvent(None, "", finished=FinishReason.ERROR, error=error)

    def give_up(self) -> None:
        """Count what is unfinished as failed, once the engine can compute no more.

        The memory's books may be what broke, so nothing is released; no request runs or waits.
        """
        self._metrics.finished[FinishReason.ERROR].inc(len(self._sequences))
        self._sequences.clear()
        self.state.running = self.state.waiting = 0

    def _forget(self, sequence: Sequence) -> None:
        self._let_go(sequence)
        del self._sequences[sequence.request_id]
        self._metrics.finished[sequence.finished or FinishReason.ABORT].inc()

    def _let_go(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)

    def _publish_state(self) -> None:
        self.state.usage = self.allocator.usage(self.holders())
        self.state.swap = self.scheduler.preemption.usage()
        self.state.running = len(self.scheduler.running)
        self.state.waiting = len(self.scheduler.waiting)
