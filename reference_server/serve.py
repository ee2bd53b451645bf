"""Event loop and signals: the life of the process. Imports torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn

from reference_server.api import Api
from reference_server.build import build_core
from reference_server.config import ServerConfig
from reference_server.connection import connections
from reference_server.engine import Engine
from reference_server.errors import ConfigError
from reference_server.limits import Limits
from reference_server.metrics import Metrics
from reference_server.prepare import Prepared, prepare

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
DRAIN_S = 30
CUT_S = 10
"""After which uvicorn cancels what goes on although its connection was cut: it would be our defect."""
WARM_UP_TOKENS = 512
"""Of the first pass, which initialises what libraries leave to first use; more shows nothing more."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: it would end the process by the signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(config: ServerConfig, listener: socket.socket) -> int:
    """Run until told to stop; returns the exit code. Closes `listener`."""
    # uvicorn's own chatter, a line for each request that is no HTTP too; its errors stay.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    with listener:
        metrics = Metrics(config.served_model, vllm_names=config.vllm_metric_names)
        prepared = prepare(config)
        core = build_core(prepared.config, metrics, prepared=prepared)
        engine = Engine(core, threads=config.threads)
        return asyncio.run(_serve(prepared, engine, metrics, listener))


async def _serve(prepared: Prepared, engine: Engine, metrics: Metrics, listener: socket.socket) -> int:
    config = prepared.config
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(engine.start, loop, min(config.max_num_batched_tokens, WARM_UP_TOKENS))
    if engine.death is not None:
        raise ConfigError(f"the engine did not start: {engine.death}")
    if prepared.memory is not None:
        prepared.memory.phase = "serve"
    limits = Limits(streams=config.max_streams, request_seconds=config.request_deadline_s)
    api = Api(config, engine, prepared.model.tokenizer, metrics, limits)
    server = _Server(
        uvicorn.Config(
            api.app(),
            http=connections(limits),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S + CUT_S,
            h11_max_incomplete_event_size=2 * limits.headers,
        )
    )
    stopped_by = _Stop(server, loop)
    stopped_by.listen_to_signals()
    if config.stop_with_parent:
        stopped_by.listen_to_parent()
    announcing = asyncio.create_task(_announce(server, config, listener))
    try:
        await server.serve(sockets=[listener])
    finally:
        announcing.cancel()
        await asyncio.to_thread(engine.stop)
    return stopped_by.exit_code


class _Stop:
    """The ways to stop: SIGTERM and Ctrl-C drain, a second one or the parent's end does not."""

    def __init__(self, server: uvicorn.Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.exit_code = 0

    def listen_to_signals(self) -> None:
        loop = self._loop
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, 0)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, 128 + signal.SIGINT)

    def listen_to_parent(self) -> None:
        """Wait for the end of stdin, on a thread that dies with the process."""

        def wait() -> None:
            # os.read, because a thread inside sys.stdin at exit would abort the interpreter.
            while os.read(0, 4096):
                continue
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._at_once, "the parent went away")

        threading.Thread(target=wait, name="parent-watch", daemon=True).start()

    def _on_signal(self, exit_code: int) -> None:
        if self._server.should_exit:
            self._at_once("told twice to stop")
            return
        log.info("stopping: finishing the requests that are open (at most %d s)", DRAIN_S)
        self.exit_code = exit_code
        self._server.should_exit = True
        # Not by uvicorn, which ends what is open with a traceback in the log.
        self._loop.call_later(DRAIN_S, self._at_once, "the time to finish is over")

    def _at_once(self, why: str) -> None:
        log.info("stopping at once: %s", why)
        self._server.should_exit = True
        self._server.force_exit = True
        # Newer Pythons wait for open connections even so; cut, their requests are given up.
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


async def _announce(server: uvicorn.Server, config: ServerConfig, listener: socket.socket) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    port = listener.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{port}"
    log.info("listening on %s", url)
    line = {"event": "listening", "url": url, "pid": os.getpid(), "model": config.served_model}
    try:
        os.write(1, json.dumps(line).encode() + b"\n")  # stdout, without a buffer to flush at exit
    except OSError as error:
        log.warning("nobody reads stdout (%s); serving all the same", error.strerror)
