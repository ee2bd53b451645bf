"""The master of workers on other machines: `python -m kvprobe.load.master`, a `MasterJob` line on stdin,
events on stdout, as a load worker.

It is a process of its own because Locust's master lives under gevent, which the parent must not. To
the parent it looks like one worker: it sums up what its workers say, passes commands on, and writes
their rows into the spool folder of the run as they come.
"""

from __future__ import annotations

import locust  # noqa: F401  # isort: skip  # first of all: it patches sockets, threads and ssl for gevent

import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import Event

from kvprobe import __version__
from kvprobe.errors import KvprobeError, StorageError
from kvprobe.evidence.clocks import WORKER_CLOCK
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.load import wire
from kvprobe.load.crew import CrewState
from kvprobe.load.end_reasons import reason_of
from kvprobe.load.job import Command, WorkerEvent
from kvprobe.load.jobs_remote import MasterJob, address_text
from kvprobe.load.live_page import LivePage
from kvprobe.load.remotes import Remote, clock_value, master_runner, refusal
from kvprobe.load.worker import Events, ignore_signals, read_lines

TICK_S = 0.1
SAY_WAITING_S = 10.0
PINGS_BEFORE_GO = 5


class Master:
    """From the first hello to the last row."""

    def __init__(self, job: MasterJob, events: Events, lines: Iterator[bytes]) -> None:
        self._job = job
        self._events = events
        self._lines = lines
        self._me = wire.Hello.of_this_process(__version__)
        self._here: dict[str, Remote] = {}  # by client id, in order of arrival
        self._crew: CrewState | None = None
        self._over = Event()
        self._facts = SpoolWriter(Path(job.spool_dir) / "master.jsonl", "master")
        self._runner = master_runner(job)
        for kind, listener in (
            (wire.HELLO, self._on_hello),
            (wire.EVENT, self._on_event),
            (wire.STARTED, self._on_started),
            (wire.PONG, self._on_pong),
            (wire.ROWS, self._on_rows),
        ):
            self._runner.register_message(kind, listener)
        self._t0_ns = 0
        self._commanded = False
        self._page = LivePage(self._runner, job.web_port) if job.web_port is not None else None

    @property
    def port(self) -> int:
        return int(self._runner.server.port)

    def run(self) -> None:
        """Returns when all workers have finished or are lost, and the parent has been told."""
        gevent.spawn(self._obey_parent)
        if self._page is not None:
            self._say("waiting", f"live view: {self._page.url}")
        self._await_workers()
        gevent.spawn(self._watch)
        self._over.wait()
        self._bye(None)
        for remote in self._here.values():
            if remote.receiver is not None:
                remote.receiver.close()
        self._facts.close()
        if self._page is not None:
            self._page.close()

    def _say(self, event: Any, detail: str) -> None:
        self._events.put(WorkerEvent(event=event, detail=detail))

    def _bye(self, reason: str | None) -> None:
        for client_id in self._here:
            self._send(client_id, wire.BYE, {"reason": reason})
        gevent.sleep(0.2)  # the sockets' own threads have to get it out

    def _send(self, client_id: str, kind: str, data: dict[str, Any]) -> None:
        try:
            self._runner.send_message(kind, data, client_id)
        except Exception as error:  # a peer that is gone; its silence is noticed by the watch
            logging.getLogger("kvprobe.load").warning("to %s: %s", client_id, error)

    # -- before the load -------------------------------------------------------------------------

    def _await_workers(self) -> None:
        wanted = self._job.expect_workers
        said = (-1, 0.0)
        while len(self._here) < wanted:
            if said[0] != len(self._here) or time.monotonic() - said[1] > SAY_WAITING_S:
                said = (len(self._here), time.monotonic())
                where = address_text(self._job.bind_host, self.port)
                self._say("waiting", f"{said[0]} of {wanted} workers are here; listening on {where}")
            gevent.sleep(TICK_S)
            self._forget_silent()
        self._hand_out_jobs()

    def _forget_silent(self) -> None:
        """Who left before the load began is not waited for."""
        for client_id, remote in list(self._here.items()):
            self._ping(remote)
            if time.monotonic() - remote.heard_s > self._job.lost_after_s:
                del self._here[client_id]

    def _hand_out_jobs(self) -> None:
        template, names = self._job.job, []
        for index, remote in enumerate(self._here.values()):
            remote.name = wire.worker_name(remote.hello.host, index)
            names.append(remote.name)
            remote.receiver = wire.Receiver(Path(self._job.spool_dir) / f"worker-{remote.name}.jsonl")
        self._crew = CrewState(names, template.breaker, named=True)
        for index, remote in enumerate(self._here.values()):
            job = msgspec.structs.replace(
                template, worker=remote.name, worker_index=index, workers=len(names), spool_path=""
            )
            self._send(remote.client_id, wire.JOB, {"job": msgspec.json.encode(job)})

    def _on_hello(self, msg: Any, **_: Any) -> None:
        hello = msgspec.convert(msg.data, wire.Hello)
        full = self._crew is not None or len(self._here) >= self._job.expect_workers
        target = self._job.job.target.base_url
        reason = "this run has all its workers already" if full else refusal(hello, self._me, target)
        if reason is not None:
            self._send(msg.node_id, wire.BYE, {"reason": reason, "sent_away": True})
            self._say("waiting", f"a worker on {hello.host} was sent away: {reason}")
        elif msg.node_id not in self._here:
            self._here[msg.node_id] = Remote(msg.node_id, hello)

    # -- the load --------------------------------------------------------------------------------

    def _obey_parent(self) -> None:
        for line in self._lines:
            command = msgspec.json.decode(line, type=Command)
            if command.command == "go":
                self._go(command.t0_ns or time.monotonic_ns())
            elif self._crew is None:
                self._leave("drained")
            else:
                self._command(command)
        if self._crew is None:
            self._leave("stopped")
        else:
            self._command(Command(command="stop", reason="the process that started the master is gone"))

    def _leave(self, reason: str) -> None:
        """Told to end before there were enough workers."""
        self._bye("the master has ended")
        self._events.put(WorkerEvent(event="finished", reason=reason))
        os._exit(0)

    def _go(self, t0_ns: int) -> None:
        """Each worker starts at the same instant, as far as the way to it is known (half a round trip)."""
        for remote in self._here.values():
            delay_s = (t0_ns - time.monotonic_ns()) / 1e9 - (remote.round_trip_s or 0.0) / 2
            shared = t0_ns if remote.hello.shares_clock(self._me) else None
            self._send(remote.client_id, wire.GO, {"t0_ns": shared, "delay_s": delay_s})
        self._t0_ns = t0_ns
        self._runner.update_state("running")

    def _command(self, command: Command) -> None:
        self._commanded = True
        for remote in self._here.values():
            self._send(remote.client_id, wire.COMMAND, {"command": msgspec.json.encode(command)})

    def _pass_on(self, told: list[WorkerEvent], command: Command | None) -> None:
        if command is not None:
            self._command(command)
        for event in told:
            if event.event == "finished":
                self._over.set()
            self._events.put(event)

    def _known(self, client_id: str) -> Remote | None:
        remote = self._here.get(client_id)
        if remote is not None:
            remote.heard_s = time.monotonic()
        return remote

    def _on_event(self, msg: Any, **_: Any) -> None:
        remote = self._known(msg.node_id)
        if remote is not None and self._crew is not None and remote.name:
            event = msgspec.json.decode(msg.data["event"], type=WorkerEvent)
            if event.event == "finished" and event.reason in ("drained", "stopped") and not self._commanded:
                # Nobody here asked for it: somebody stopped it where it runs.
                self._crew.note(remote.name, msgspec.structs.replace(event, event="progress"))
                self._pass_on(*self._crew.lose(remote.name, f"on {remote.hello.host} was stopped there"))
            else:
                self._pass_on(*self._crew.note(remote.name, event))

    def _on_started(self, msg: Any, **_: Any) -> None:
        """Which instant of its clock is which of ours: the only thing that is ever known of its clock."""
        remote = self._known(msg.node_id)
        if remote is None:
            return
        value = clock_value(remote, self._me, self._t0_ns, msg.data)
        with self._storing():
            self._facts.write(Fact(name=WORKER_CLOCK, source="master", value=value))

    def _on_rows(self, msg: Any, **_: Any) -> None:
        remote = self._known(msg.node_id)
        if remote is None or remote.receiver is None:
            return
        with self._storing():
            size = remote.receiver.take(msg.data["offset"], msg.data["data"])
            self._send(remote.client_id, wire.ACK, {"offset": size})

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """A disk that refuses ends the load of all workers; their rows stay on their machines."""
        try:
            yield
        except StorageError as error:
            self._command(Command(command="stop", reason="the master's disk is full"))
            self._events.put(WorkerEvent(event="finished", reason="storage", detail=str(error)))
            self._bye("the master's disk refuses to take rows")
            os._exit(0)

    # -- who is still there ------------------------------------------------------------------------

    def _ping(self, remote: Remote) -> None:
        now_s = time.monotonic()
        if now_s - remote.pinged_s >= wire.PING_EVERY_S or remote.ping_number < PINGS_BEFORE_GO:
            remote.pinged_s = now_s
            remote.ping_number += 1
            self._send(remote.client_id, wire.PING, {"number": remote.ping_number})

    def _on_pong(self, msg: Any, **_: Any) -> None:
        remote = self._known(msg.node_id)
        if remote is not None and msg.data["number"] == remote.ping_number:
            took_s = time.monotonic() - remote.pinged_s
            remote.round_trip_s = min(took_s, remote.round_trip_s or took_s)

    def _watch(self) -> None:
        assert self._crew is not None
        looked_s = time.monotonic()
        while not self._over.is_set():
            gevent.sleep(TICK_S)
            now_s = time.monotonic()
            stood_still, looked_s = now_s - looked_s > wire.STOOD_STILL_S, now_s
            for remote in self._here.values():
                if stood_still:
                    remote.heard_s = now_s
                self._ping(remote)
                silent_s = now_s - remote.heard_s
                if silent_s > self._job.lost_after_s:
                    why = f"on {remote.hello.host} has not answered for {silent_s:.0f} s"
                    self._pass_on(*self._crew.lose(remote.name, why))


def main() -> int:
    """Exit code 0 whenever `finished` could be told; its reason says how the load ended."""
    ignore_signals()
    logging.getLogger("locust").setLevel(logging.CRITICAL)
    events = Events()
    lines = read_lines(0)
    try:
        line = next(lines, None)
        if line is None:
            return 0
        Master(msgspec.json.decode(line, type=MasterJob), events, lines).run()
    except KvprobeError as error:
        events.put(WorkerEvent(event="finished", reason=reason_of(error), detail=str(error)))
    except Exception as error:
        # The parent must hear of it, whatever it was; the traceback goes to its log.
        traceback.print_exc()
        events.put(WorkerEvent(event="finished", reason="error", detail=f"{type(error).__name__}: {error}"))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Threads of ZeroMQ and the one that reads stdin may still be inside a call.
    os._exit(code)
