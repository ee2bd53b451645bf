"""The engine's thread.

The event loop talks to it through a queue of commands; it answers with one `call_soon_threadsafe` a
step. Between steps it takes in what arrived and drops what was given up, so a client that goes away
has its blocks freed before the next step.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable

import torch

from reference_server.core import EngineCore, Output
from reference_server.device import OutOfDeviceMemory
from reference_server.kv.allocator import Allocator
from reference_server.kv.prefix import HashChain
from reference_server.models.tokenizer import Tokenizer
from reference_server.sequence import FinishReason, Sequence
from reference_server.streams import TokenEvent, TokenStream, deliver

log = logging.getLogger(__name__)

ENGINE_DIED = "the engine died; see the server's log"


class Engine:
    """What the API sees of the engine."""

    def __init__(self, core: EngineCore, *, threads: int) -> None:
        self._core = core
        self._threads = threads
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, TokenStream] = {}
        self._loop: AbstractEventLoop | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self.state = core.state
        self.death: str | None = None
        """Why the engine died; None while it lives."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self._core.runner.tokenizer

    @property
    def allocator(self) -> Allocator:
        return self._core.allocator

    def chain(self, cache_salt: str | None) -> HashChain:
        return self._core.chain(cache_salt)

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

    def submit(self, sequence: Sequence, stream: TokenStream) -> None:
        """From the event loop: start a request."""
        self._commands.put(lambda: self._add(sequence, stream))

    def abort(self, request_id: str) -> None:
        """From any thread: give a request up; nothing happens when it is finished."""
        self._commands.put(lambda: self._abort(request_id))

    # Everything below runs on the engine's thread.

    def _main(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while not self._stopping:
                self._take_commands()
                if self._core.has_work:
                    self._send(self._core.step())
                self._core.housekeeping()
        except Exception as error:
            if isinstance(error, OutOfDeviceMemory):
                log.error("%s", error)
            log.exception("the engine died")
            self.death = f"{type(error).__name__}: {error}"
            self._core.give_up()
            self._fail_streams()
            self._refuse_late_comers()

    def _take_commands(self) -> None:
        """All commands that are there; with no work, wait for the first."""
        with contextlib.suppress(queue.Empty):
            if not self._core.has_work:
                self._commands.get(timeout=self._core.stats_interval_s)()
            while True:
                self._commands.get_nowait()()

    def _send(self, outputs: list[Output]) -> None:
        batch = []
        for request_id, event in outputs:
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            batch.append((stream, event))
            if event.finished is not None:
                del self._streams[request_id]
        if not batch or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(deliver, batch)
        except RuntimeError:
            log.warning("the event loop is closed; %d events dropped", len(batch))

    def _refuse_late_comers(self) -> None:
        """A dead engine still answers: whoever was submitted meanwhile is told."""
        while not self._stopping:
            self._commands.get()()
            self._fail_streams()

    def _fail_streams(self) -> None:
        """A last event for everyone who was told of no end.

        That is more than the core's requests: a step that dies takes with it the events of those that
        finished in it.
        """
        event = TokenEvent(None, "", finished=FinishReason.ERROR, error=ENGINE_DIED)
        self._send([(request_id, event) for request_id in self._streams])

    def _warm_up(self, num_tokens: int, done: threading.Event) -> None:
        try:
            self._core.runner.warm_up(num_tokens)
        except Exception as error:
            self.death = f"{type(error).__name__}: {error}"
            raise
        finally:
            done.set()

    def _add(self, sequence: Sequence, stream: TokenStream) -> None:
        self._streams[sequence.request_id] = stream
        if self.death is None:
            self._core.add(sequence)

    def _abort(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        if self.death is None:
            self._core.abort(request_id)

    def _stop(self) -> None:
        self._stopping = True
        for request_id in self._core.request_ids:
            self._abort(request_id)
