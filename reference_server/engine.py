"""The engine: a thread of its own that schedules, computes and hands tokens over.

The event loop talks to it through a queue of commands; it answers with one `call_soon_threadsafe`
a step. Between steps it takes in what arrived and drops what was given up, so a client that goes
away has its blocks freed before the next step.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable

import torch

from reference_server.kv.allocator import Allocator
from reference_server.kv.prefix import HashChain, PrefixHasher
from reference_server.metrics import EngineState, Metrics
from reference_server.runner import ModelRunner
from reference_server.scheduler import Scheduler, Step
from reference_server.sequence import FinishReason, Sequence
from reference_server.statsline import StatsLine
from reference_server.streams import TokenEvent, TokenStream, deliver

log = logging.getLogger(__name__)

Delivery = tuple[TokenStream, TokenEvent]


class Engine:
    """Everything but HTTP."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        hasher: PrefixHasher,
        metrics: Metrics,
        *,
        bytes_per_token: int,
        prefix_caching: bool,
        threads: int,
        check_integrity: bool,
        stats_interval_s: float = 10.0,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._hasher = hasher
        self._metrics = metrics
        self._prefix_caching = prefix_caching
        self._threads = threads
        self._check_integrity = check_integrity
        self._stats_interval_s = stats_interval_s
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, tuple[Sequence, TokenStream]] = {}
        self._loop: AbstractEventLoop | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._stats = StatsLine()
        self.state = EngineState(self.allocator.usage(()), bytes_per_token)
        self.death: str | None = None
        """Why the engine died; None while it lives."""

    @property
    def allocator(self) -> Allocator:
        return self._scheduler.allocator

    def start(self, loop: AbstractEventLoop, warm_up_tokens: int) -> None:
        """Start the thread; returns after the first forward pass."""
        self._loop = loop
        warm = threading.Event()
        self._commands.put(lambda: self._warm_up(warm_up_tokens, warm))
        self._thread.start()
        warm.wait()

    def stop(self) -> None:
        """Give up what still runs and end the thread."""
        self._commands.put(self._stop)
        if self._thread.is_alive():
            self._thread.join()

    def chain(self, cache_salt: str | None) -> HashChain:
        return HashChain(self._hasher, cache_salt)

    def submit(self, sequence: Sequence, stream: TokenStream) -> None:
        """From the event loop: start a request."""
        self._commands.put(lambda: self._add(sequence, stream))

    def abort(self, request_id: str) -> None:
        """From any thread: give a request up; nothing happens when it is finished."""
        self._commands.put(lambda: self._abort(request_id))

    # Everything below runs on the engine thread.

    def _main(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while not self._stopping:
                self._take_commands()
                if self._scheduler.has_work:
                    self._step()
        except Exception as error:
            log.exception("the engine died")
            self._die(f"{type(error).__name__}: {error}")

    def _take_commands(self) -> None:
        """All commands that are there; with no work, wait for the first."""
        block = not self._scheduler.has_work
        try:
            self._commands.get(block=block, timeout=self._stats_interval_s if block else None)()
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            pass
        if block and not self._scheduler.has_work:
            self._when_idle()
        self._publish_state()

    def _when_idle(self) -> None:
        if self._stats.due(self._stats_interval_s):
            self._stats.write(self.state)
            self.allocator.check(self._scheduler.holders())

    def _step(self) -> None:
        step = self._scheduler.schedule()
        self._account_scheduling(step)
        sampled = self._runner.run(step.work) if step.work else []
        now = time.monotonic()
        deliveries = [self._failure(sequence) for sequence in step.failed]
        for item, token in zip(step.work, sampled, strict=True):
            item.sequence.num_computed += item.count
            self.allocator.commit(item.sequence)
            self._stats.computed(item.count)
            if token is not None:
                deliveries.append(self._accept(item.sequence, token, now))
        self._send(deliveries)
        if self._check_integrity:
            self.allocator.check(self._scheduler.holders())
        if self._stats.due(self._stats_interval_s):
            self._publish_state()
            self._stats.write(self.state)

    def _account_scheduling(self, step: Step) -> None:
        now = time.monotonic()
        if step.preempted:
            self._metrics.preemptions.inc(len(step.preempted))
            for sequence in step.preempted:
                log.warning(
                    "preempted %s for lack of KV blocks: %d tokens to compute again",
                    sequence.request_id,
                    len(sequence.tokens),
                )
        for sequence in step.admitted:
            if sequence.timeline.scheduled is not None:
                continue
            sequence.timeline.scheduled = now
            sequence.cached_tokens = sequence.num_computed
            self._metrics.queue_time.observe(now - sequence.timeline.arrived)
            if self._prefix_caching:
                self._metrics.prefix_queries.inc(sequence.num_prompt_tokens)
                self._metrics.prefix_hits.inc(sequence.cached_tokens)
                self._stats.queried(sequence.num_prompt_tokens, sequence.cached_tokens)
        state = self.state
        state.running_max = max(state.running_max, len(self._scheduler.running))
        self._publish_state()
        state.usage_ratio_max = max(state.usage_ratio_max, state.usage.ratio)

    def _accept(self, sequence: Sequence, token: int, now: float) -> Delivery:
        """Append a sampled token and see whether the request ends with it."""
        sequence.tokens.append(token)
        text = sequence.text.push(token)
        if token == sequence.stop_token or sequence.text.stopped_by is not None:
            sequence.finished = FinishReason.STOP
        elif sequence.num_output_tokens >= sequence.max_tokens:
            sequence.finished = FinishReason.LENGTH
        self._account_token(sequence, now)
        _, stream = self._streams[sequence.request_id]
        if sequence.finished:
            text += sequence.text.finish()
            self._forget(sequence)
        return stream, TokenEvent(token, text, sequence.cached_tokens, sequence.finished)

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

    def _failure(self, sequence: Sequence) -> Delivery:
        _, stream = self._streams[sequence.request_id]
        self._forget(sequence)
        return stream, TokenEvent(
            None, "", finished=FinishReason.ERROR, error="the KV cache has no room for this request"
        )

    def _forget(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        del self._streams[sequence.request_id]
        self._metrics.finished[sequence.finished or FinishReason.ABORT].inc()

    def _send(self, deliveries: list[Delivery]) -> None:
        if deliveries and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(deliver, deliveries)
            except RuntimeError:
                log.warning("the event loop is closed; %d tokens dropped", len(deliveries))

    def _publish_state(self) -> None:
        self.state.usage = self.allocator.usage(self._scheduler.holders())
        self.state.running = len(self._scheduler.running)
        self.state.waiting = len(self._scheduler.waiting)

    def _warm_up(self, num_tokens: int, done: threading.Event) -> None:
        try:
            self._runner.warm_up(num_tokens)
        finally:
            done.set()

    def _add(self, sequence: Sequence, stream: TokenStream) -> None:
        self._streams[sequence.request_id] = (sequence, stream)
        self._scheduler.add(sequence)

    def _abort(self, request_id: str) -> None:
        found = self._streams.get(request_id)
        if found is not None:
            found[0].finished = FinishReason.ABORT
            self._forget(found[0])

    def _stop(self) -> None:
        self._stopping = True
        for sequence, _ in list(self._streams.values()):
            self._abort(sequence.request_id)

    def _die(self, why: str) -> None:
        self.death = why
        event = TokenEvent(
            None, "", finished=FinishReason.ERROR, error="the engine died; see the server's log"
        )
        self._send([(stream, event) for _, stream in self._streams.values()])
        self._metrics.finished[FinishReason.ERROR].inc(len(self._streams))
        self._streams.clear()
