"""Locust's part: each user is a greenlet with one connection that sends what the conductor gives it.

Import `locust` before this module (it patches the standard library); `kvprobe.load.worker` does.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from dataclasses import dataclass

import gevent
from locust import FastHttpUser, constant, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import Runner, WorkerRunner

from kvprobe.errors import StorageError
from kvprobe.evidence.records import OpenedRequest, RequestRecord, Waiting
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.load.conductor import Conductor
from kvprobe.load.connection import Connection, UserClientPool
from kvprobe.load.load_plan import Ticket
from kvprobe.load.look_up import resolve_ahead
from kvprobe.load.pauses import RETRY_AFTER_WAIT, pause_after
from kvprobe.load.request_form import StreamSpec
from kvprobe.load.stream import run_request
from kvprobe.load.waits import Waits

log = logging.getLogger("kvprobe.load")

RETAINED_ANSWERS = 8
RETAINED_CHARS = 400


class Journal:
    """The spool, until it fails once: then the load ends, and nothing more is written."""

    def __init__(self, spool: SpoolWriter, conductor: Conductor) -> None:
        self._spool = spool
        self._conductor = conductor
        self.failed = False

    def write(self, item: RequestRecord | OpenedRequest | Waiting | Sample) -> None:
        """Never raises for a full disk; the conductor is told."""
        if self.failed:
            return
        try:
            self._spool.write(item)
        except StorageError as error:
            self.failed = True
            self._conductor.end("storage", str(error), 0.0)


@dataclass(slots=True)
class LoadContext:
    """What the users of a worker share."""

    conductor: Conductor
    journal: Journal
    spec: StreamSpec
    base_url: str
    insecure: bool
    waits: Waits
    run_token: str = ""
    retained: int = 0

    def __post_init__(self) -> None:
        self.run_token = secrets.token_hex(4)

    def request_id(self, index: int) -> str:
        """Unique over runs: servers keep it in their logs when they are sent an X-Request-Id."""
        return f"kvp-{self.run_token}-{index}"

    def retain_chars(self, ticket: Ticket) -> int:
        """Characters of this answer to keep: the first few measured ones have theirs kept."""
        if ticket.planned.warmup or self.retained >= RETAINED_ANSWERS:
            return 0
        self.retained += 1
        return RETAINED_CHARS


class StreamUser(FastHttpUser):  # type: ignore[misc]
    """One user. A subclass with `context` and `host` set is what Locust spawns (`user_class`)."""

    abstract = True
    wait_time = constant(0)
    context_of_load: LoadContext

    def __init__(self, environment: Environment) -> None:
        load = self.context_of_load
        timeout_s = load.spec.timeouts.connect_s
        # One pool of one connection per user, without the client object that FastHttpUser would
        # make of it at first use; the TLS context in it is the process's.
        self.client_pool = UserClientPool(insecure=load.insecure, connect_timeout_s=timeout_s)
        super().__init__(environment)
        self._connection = Connection(self.client_pool.get_client(load.base_url))
        self._seat = load.conductor.seat()

    def on_start(self) -> None:
        """In a closed loop all users begin at one instant: connecting is done before it."""
        if self.context_of_load.conductor.plan.ticks is None:
            with contextlib.suppress(Exception):  # the request will meet it too, and say so
                self._connection.connect()

    @task  # type: ignore[untyped-decorator]
    def send_next(self) -> None:
        """Claim a request, run it, write its row, tell Locust; the user ends when there is none."""
        load = self.context_of_load
        try:
            ticket = load.conductor.claim(self._seat)
            record = self._run(ticket) if ticket is not None else None
        except Exception as error:
            # Locust would log it and go on, and the rows of this user would be missing silently.
            log.exception("a defect in a user")
            load.conductor.end("error", f"{type(error).__name__}: {error}", 0.0)
            raise StopUser from error
        if record is None:
            raise StopUser
        load.journal.write(record)
        load.conductor.finished(record)
        self._tell_locust(record)
        if (pause_s := pause_after(record, obey=load.spec.obey_retry_after)) is not None:
            self._pause(pause_s, record)

    def _pause(self, seconds: float, record: RequestRecord) -> None:
        """Ends early when the load does. What was waited because the server asked for it is on record."""
        load = self.context_of_load
        began_ns = time.monotonic_ns()
        load.conductor.closing.wait(seconds)
        if record.failure == "throttled":
            now_ns = time.monotonic_ns()
            waited = (now_ns - began_ns) / 1e9
            labels = {"worker": load.spec.worker}
            load.journal.write(Sample(t_ns=now_ns, metric=RETRY_AFTER_WAIT, labels=labels, value=waited))

    def _run(self, ticket: Ticket) -> RequestRecord:
        load, planned = self.context_of_load, ticket.planned
        request_id = load.request_id(planned.index)

        def note_sent(sent_ns: int) -> None:
            load.journal.write(
                OpenedRequest(
                    request_id=request_id,
                    plan_index=planned.index,
                    intended_ns=ticket.intended_ns,
                    sent_ns=sent_ns,
                    warmup=planned.warmup,
                    worker=load.spec.worker,
                )
            )
            load.waits.sent(request_id, ticket.intended_ns, sent_ns, planned.warmup)

        try:
            return run_request(
                self._connection,
                planned,
                load.spec,
                request_id=request_id,
                intended_ns=ticket.intended_ns,
                on_sent=note_sent,
                on_first_token=lambda: load.waits.first_token(request_id),
                retain_chars=load.retain_chars(ticket),
            )
        finally:
            load.waits.ended(request_id)

    def _tell_locust(self, record: RequestRecord) -> None:
        """One `request` event per request, for Locust's own page; our statistics are our own."""
        took_ns = (record.end_ns or 0) - (record.sent_ns or record.intended_ns)
        self.environment.events.request.fire(
            request_type="POST",
            name=record.kind,
            response_time=took_ns / 1e6,
            response_length=0,
            exception=RuntimeError(record.failure) if record.failure else None,
            context={},
        )


def user_class(load: LoadContext) -> type[StreamUser]:
    """The concrete class for one run."""
    fields = {"abstract": False, "context_of_load": load, "host": load.base_url}
    return type("LoadUser", (StreamUser,), fields)


class Crowd:
    """The users of this worker, in a Locust environment of their own."""

    def __init__(self, load: LoadContext) -> None:
        self._class = user_class(load)
        self.environment = Environment(user_classes=[self._class], host=load.base_url)
        self._runner: Runner = self.environment.create_local_runner()
        resolve_ahead(load.base_url)

    def spawn(self, users: int) -> None:
        """Make all users now; they wait for the conductor."""
        self._runner.start(users, spawn_rate=users)
        spawning = self._runner.spawning_greenlet
        if spawning is not None:
            spawning.join()

    def cancel(self, timeout_s: float = 3.0) -> None:
        """End what is under way: each request becomes a `cancelled_at_end` row."""
        self._runner.user_greenlets.kill(gevent.GreenletExit, block=True, timeout=timeout_s)

    def close(self) -> None:
        """Stop Locust's own greenlets. (`quit` would walk the stack of every frame to log it.)"""
        self._runner.greenlet.kill(block=False)


class RemoteCrowd(Crowd):
    """The users of a worker whose Locust runner is connected to a master: its page counts them."""

    def __init__(self, load: LoadContext, runner: WorkerRunner) -> None:
        self._class = user_class(load)
        self.environment = runner.environment
        self.environment.user_classes = [self._class]
        self.environment.host = load.base_url
        self._runner = runner
        resolve_ahead(load.base_url)

    def spawn(self, users: int) -> None:
        """As `Crowd.spawn`, and Locust's master hears of it."""
        self._runner.spawn_users({self._class.__name__: users})
        self._runner.spawning_complete(users)

    def close(self) -> None:
        """The runner is still needed, for the last rows."""
