"""A load worker for a master on another machine: `python -m kvprobe.load.agent`, an `AgentJob` line on
stdin, events on stdout.

It connects through Locust's own distribution, says who it is, is given a job, asks the process that
started it whether this target may be loaded from here, and then is a worker like any other. Its rows
go to a spool on this machine first and from there to the master; they stay here until the master has
them. A master that falls silent ends the load, and the rows stay.
"""

from __future__ import annotations

import locust  # noqa: F401  # isort: skip  # first of all: it patches sockets, threads and ssl for gevent

import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import gevent.queue
import msgspec
from gevent.event import Event
from locust.env import Environment

from kvprobe import __version__
from kvprobe.errors import KvprobeError, Problem, TargetError, UsageError
from kvprobe.evidence.environment import read_clocks
from kvprobe.load import wire
from kvprobe.load.end_reasons import reason_of
from kvprobe.load.job import Command, LoadJob, WorkerEvent
from kvprobe.load.job_setup import prompts_of
from kvprobe.load.jobs_remote import AgentJob, Offer, address_text, unpack_files
from kvprobe.load.users import LoadContext, RemoteCrowd
from kvprobe.load.worker import Events, Worker, ignore_signals, read_lines
from kvprobe.load.workload import Workload

DELIVER_S = 60.0
"""How long the last rows may take to reach a master that still answers."""


class Agent:
    """The connection to the master, and the load in between."""

    def __init__(self, job: AgentJob, events: Events, lines: Iterator[bytes]) -> None:
        self._job = job
        self._events = events
        self._lines = lines
        self._offered: gevent.queue.Queue[bytes] = gevent.queue.Queue()
        self._commands: gevent.queue.Queue[bytes | None] = gevent.queue.Queue()
        self._allowed, self._bye = Event(), Event()
        if job.trusted:
            self._allowed.set()
        self._heard_s = time.monotonic()
        self._lost: str | None = None
        self._sent_away = False
        self._addresses: list[str] = []
        self._shipper: wire.Shipper | None = None
        where = address_text(job.master_host, job.master_port)
        self._where = where
        events.put(WorkerEvent(event="waiting", detail=f"connecting to the master at {where} ..."))
        environment = Environment(user_classes=[])
        self._runner = environment.create_worker_runner(job.master_host, job.master_port)
        for kind, listener in (
            (wire.JOB, self._on_job),
            (wire.GO, self._on_go),
            (wire.COMMAND, self._on_command),
            (wire.PING, self._on_ping),
            (wire.ACK, self._on_ack),
            (wire.BYE, self._on_bye),
        ):
            self._runner.register_message(kind, listener)
        gevent.spawn(self._obey_parent)

    def run(self) -> None:
        """From hello to bye. Raises `KvprobeError` for a job that cannot be done here."""
        self._heard_s = time.monotonic()
        self._say(wire.HELLO, msgspec.to_builtins(wire.Hello.of_this_process(__version__)))
        self._events.put(
            WorkerEvent(event="waiting", detail=f"connected to {self._where}; waiting for a job")
        )
        gevent.spawn(self._watch_master)
        job = self._accepted()
        if job is None:
            return
        # A long trace is read in a thread: a worker that answers nobody meanwhile would be called lost.
        gevent.get_hub().threadpool.apply(_read_ahead, (job,))
        worker = Worker(job, self._put, iter(self._commands.get, None), self._crowd)
        self._shipper = wire.Shipper(Path(job.spool_path))
        gevent.spawn(self._ship)
        worker.run(self._deliver)
        self._bye.wait(self._job.lost_after_s)

    def _crowd(self, load: LoadContext) -> RemoteCrowd:
        return RemoteCrowd(load, self._runner)

    def _accepted(self) -> LoadJob | None:
        """The job, once this machine's own side has allowed it; None when it is told to end before."""
        waiting = gevent.spawn(self._offered.get)
        while not waiting.ready():
            gevent.wait([waiting, self._bye], timeout=0.2, count=1)
            if self._lost is not None:
                raise self._no_job(self._lost)
            if self._bye.is_set():
                return None
        job = msgspec.json.decode(waiting.get(), type=LoadJob)
        if not wire.SAFE_NAME.match(job.worker):
            message = f"the master gives this worker a name that is none: {job.worker!r}"
            raise UsageError(Problem("bad_job", message))
        unpack_files(job, Path(self._job.spool_dir).parent / "traces")
        job.spool_path = str(Path(self._job.spool_dir) / f"worker-{job.worker}.jsonl")
        job.target.api_key_env = self._job.api_key_env or job.target.api_key_env
        job.target.__post_init__()
        offer = Offer(
            base_url=job.target.base_url,
            workload=str(job.workload.get("name")),
            insecure=job.target.insecure,
        )
        self._events.put(WorkerEvent(event="offered", detail=msgspec.json.encode(offer).decode()))
        while not self._allowed.wait(0.2):
            if self._bye.is_set():
                return None
        if not self._job.trusted:
            job.target.addresses = self._addresses  # of this machine's own guard, not the master's
        return job

    def _no_job(self, why: str) -> KvprobeError:
        """The master does not want this worker, or is not there any more."""
        if self._sent_away:
            message = f"the master at {self._where} does not take this worker: {why}"
            return UsageError(Problem("master", message))
        return TargetError(Problem("master", why, "start the master, then this worker again"))

    # -- what the process that started us says ---------------------------------------------------

    def _obey_parent(self) -> None:
        for line in self._lines:
            command = msgspec.json.decode(line, type=Command)
            if command.command == "accept":
                self._addresses = command.addresses
                self._allowed.set()
            elif command.command == "refuse":
                self.leave(command.reason or "refused", command.detail)
                os._exit(0)
            else:
                self._commands.put(line)
        self._commands.put(None)  # it is gone: the worker stops
        if not self._allowed.is_set():
            self.leave("error", "was ended on its machine before it had a job")
            os._exit(0)

    def leave(self, reason: str, detail: str | None) -> None:
        """Tell the master that this worker does not take part, and why."""
        refused = WorkerEvent(event="finished", reason=reason, detail=detail)
        self._say(wire.EVENT, {"event": msgspec.json.encode(refused)})
        gevent.sleep(0.3)  # the socket's own thread has to get it out

    # -- what the master says --------------------------------------------------------------------

    def _on_job(self, msg: Any, **_: Any) -> None:
        self._heard_s = time.monotonic()
        self._offered.put(bytes(msg.data["job"]))

    def _on_go(self, msg: Any, **_: Any) -> None:
        """The schedule's zero on our own clock: now and the delay that the master gives."""
        self._heard_s = time.monotonic()
        shared, delay_s = msg.data["t0_ns"], float(msg.data["delay_s"])
        t0_ns = int(shared) if shared is not None else time.monotonic_ns() + int(max(delay_s, 0.0) * 1e9)
        self._commands.put(msgspec.json.encode(Command(command="go", t0_ns=t0_ns)))
        self._say(wire.STARTED, {"t0_ns": t0_ns, "clock": read_clocks()})

    def _on_command(self, msg: Any, **_: Any) -> None:
        self._heard_s = time.monotonic()
        self._commands.put(bytes(msg.data["command"]))

    def _on_ping(self, msg: Any, **_: Any) -> None:
        self._heard_s = time.monotonic()
        self._say(wire.PONG, {"number": msg.data["number"]})

    def _on_ack(self, msg: Any, **_: Any) -> None:
        self._heard_s = time.monotonic()
        if self._shipper is not None:
            self._shipper.acked(int(msg.data["offset"]), time.monotonic())

    def _on_bye(self, msg: Any, **_: Any) -> None:
        said = msg.data or {}
        if said.get("reason"):
            self._lost, self._sent_away = str(said["reason"]), bool(said.get("sent_away"))
        self._bye.set()

    # -- what we say -----------------------------------------------------------------------------

    def _say(self, kind: str, data: dict[str, Any]) -> None:
        try:
            self._runner.send_message(kind, data)
        except Exception as error:  # the socket is full or gone; silence is noticed on both sides
            logging.getLogger("kvprobe.load").warning("to the master: %s", error)

    def _put(self, event: WorkerEvent) -> None:
        """To the master, and to the process that started us; `finished` here carries what is left here."""
        self._say(wire.EVENT, {"event": msgspec.json.encode(event)})
        if event.event == "finished" and self._shipper is not None:
            if self._lost is not None:
                event.reason, event.detail = "lost", self._lost
            elif self._shipper.unacked_bytes:
                event.reason = "lost"
                event.detail = f"{self._shipper.unacked_bytes} bytes of rows did not reach the master"
        self._events.put(event)

    def _ship(self) -> None:
        while True:
            self._ship_now()
            gevent.sleep(wire.SHIP_EVERY_S)

    def _ship_now(self) -> None:
        assert self._shipper is not None
        while (rows := self._shipper.next_rows(time.monotonic())) is not None:
            self._say(wire.ROWS, rows)
            gevent.sleep(0)  # receives of the load come first

    def _deliver(self) -> None:
        """Every row is in the spool: wait until the master has them all."""
        assert self._shipper is not None
        give_up_s = time.monotonic() + DELIVER_S
        while self._shipper.unacked_bytes and self._lost is None and time.monotonic() < give_up_s:
            self._ship_now()
            gevent.sleep(0.02)

    def _watch_master(self) -> None:
        """A master that is gone cannot say so."""
        looked_s = time.monotonic()
        while self._lost is None and not self._bye.is_set():
            gevent.sleep(0.5)
            if time.monotonic() - looked_s > wire.STOOD_STILL_S:
                self._heard_s = time.monotonic()  # it was we who stood still
            looked_s = time.monotonic()
            silent_s = time.monotonic() - self._heard_s
            if silent_s > self._job.lost_after_s and not self._bye.is_set():
                self._lost = f"the master at {self._where} has not answered for {silent_s:.0f} s"
                end = Command(command="drain", reason=self._lost, within_s=1.0)
                self._commands.put(msgspec.json.encode(end))


def _read_ahead(job: LoadJob) -> None:
    """What is read once is kept; the worker asks for it again. Raises UsageError."""
    prompts_of(job, Workload.model_validate(job.workload))


def main() -> int:
    """Exit code 0 whenever `finished` could be told; its reason says how the load ended."""
    ignore_signals()
    logging.getLogger("locust").setLevel(logging.ERROR)
    events = Events()
    lines = read_lines(0)
    line = next(lines, None)
    if line is None:
        return 0
    agent: Agent | None = None
    try:
        agent = Agent(msgspec.json.decode(line, type=AgentJob), events, lines)
        agent.run()
    except ConnectionError:
        events.put(WorkerEvent(event="finished", reason="refused", detail="no master answers there"))
    except KvprobeError as error:
        _give_up(agent, events, reason_of(error), str(error))
    except Exception as error:
        # The parent must hear of it, whatever it was; the traceback goes to its log.
        traceback.print_exc()
        _give_up(agent, events, "error", f"{type(error).__name__}: {error}")
    return 0


def _give_up(agent: Agent | None, events: Events, reason: str, detail: str) -> None:
    """The master, which would wait in vain, and the process that started us hear why."""
    if agent is not None:
        agent.leave(reason, detail)
    events.put(WorkerEvent(event="finished", reason=reason, detail=detail))


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Threads of ZeroMQ and the one that reads stdin may still be inside a call.
    os._exit(code)
