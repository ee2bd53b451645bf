"""Several workers as one: their events summed, and what the others are told when one has ended.

Pure bookkeeping: whoever carries the messages (pipes to processes of this machine, Locust's sockets
to other machines) feeds it events and sends what it answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvprobe.load.crew_breaker import CrewBreaker
from kvprobe.load.end_reasons import QUICK_DRAIN_S, graver
from kvprobe.load.job import BreakerSpec, Command, WorkerEvent

_QUICK = ("breaker", "auth")
_AT_ONCE = ("storage", "error", "stopped", "usage", "refused")


@dataclass(slots=True)
class Member:
    """What is known of one worker."""

    name: str
    last: WorkerEvent = field(default_factory=lambda: WorkerEvent(event="progress"))
    ready: bool = False
    draining: bool = False
    finished: bool = False
    lost: str | None = None
    """Why it is no longer there, if it went without saying so."""


class CrewState:
    """The state of all workers of a run; with a `breaker`, its limits hold for all of them together.

    `named`: a single worker has a name that says something, too."""

    def __init__(self, names: list[str], breaker: BreakerSpec | None = None, *, named: bool = False) -> None:
        self._named = named or len(names) > 1
        self.members = {name: Member(name) for name in names}
        self._breaker = CrewBreaker(breaker) if breaker is not None and len(names) > 1 else None
        self._given_up: str | None = None
        self._ready_told = self._draining_told = False
        self._ending: str | None = None

    @property
    def over(self) -> bool:
        """Every worker has finished or is lost."""
        return all(m.finished or m.lost is not None for m in self.members.values())

    @property
    def lost(self) -> list[Member]:
        """Those that went without saying so."""
        return [m for m in self.members.values() if m.lost is not None]

    def note(self, name: str, event: WorkerEvent) -> tuple[list[WorkerEvent], Command | None]:
        """What to tell the parent, and what to tell all workers."""
        member = self.members[name]
        if member.finished or member.lost is not None:
            return [], None
        before = member.last
        if event.event != "ready" or event.sent:
            member.last = event
        told: list[WorkerEvent] = []
        command = self._watch(before, event)
        match event.event:
            case "ready":
                member.ready = True
                if not self._ready_told and all(m.ready for m in self.members.values()):
                    self._ready_told = True
                    told.append(self.total("ready"))
            case "draining":
                member.draining = True
                told.extend(self._drained())
            case "finished":
                member.finished = member.draining = True
                command = self._after(event) or command
                told.extend(self._drained())
                told.append(self._end() if self.over else self.total("progress"))
            case "progress":
                told.append(self.total("progress"))
            case _:
                told.append(event)
        return told, command

    def _watch(self, before: WorkerEvent, event: WorkerEvent) -> Command | None:
        """The breaker of all, as long as nobody has begun to end."""
        if (
            self._breaker is None
            or self._ending is not None
            or any(m.draining for m in self.members.values())
        ):
            return None
        if event.event != "progress":
            return None
        self._given_up = self._breaker.note(before, event)
        if self._given_up is None:
            return None
        return self._once(Command(command="drain", reason="breaker", within_s=QUICK_DRAIN_S))

    def lose(self, name: str, why: str) -> tuple[list[WorkerEvent], Command | None]:
        """A worker is gone. What it did is kept; what the rest sends from here on is another load
        than the one that was asked for, so the rest is told to end."""
        member = self.members[name]
        if member.finished or member.lost is not None:
            return [], None
        member.lost = why
        told = [self.total("lost", detail=self._said_of(member))]
        if self.over:
            told.append(self._end())
            return told, None
        return told, self._once(Command(command="drain", reason=f"worker {name} was lost"))

    def total(self, event: str, reason: str | None = None, detail: str | None = None) -> WorkerEvent:
        """The sums over all workers; of a lost one its last word counts, nothing of it is active."""
        members = self.members.values()
        return WorkerEvent(
            event=event,  # type: ignore[arg-type]
            sent=sum(m.last.sent for m in members),
            ok=sum(m.last.ok for m in members),
            failed=sum(m.last.failed for m in members),
            active=sum(m.last.active for m in members if m.lost is None),
            intended=sum(m.last.intended for m in members),
            reason=reason,
            detail=detail,
        )

    def _drained(self) -> list[WorkerEvent]:
        """`draining`, once: when none of them issues requests any more."""
        if self._draining_told or not all(m.draining or m.lost is not None for m in self.members.values()):
            return []
        self._draining_told = True
        return [self.total("draining")]

    def _said_of(self, member: Member) -> str:
        which = f"load worker {member.name}" if self._named else "the load worker"
        return f"{which} {member.lost}"

    def _after(self, event: WorkerEvent) -> Command | None:
        """The target's refusal or our own trouble, seen by one worker, ends the load of all."""
        reason = event.reason or "error"
        if reason in _QUICK:
            return self._once(Command(command="drain", reason=reason, within_s=QUICK_DRAIN_S))
        if reason in _AT_ONCE:
            return self._once(Command(command="stop", reason=reason))
        return None

    def _once(self, command: Command) -> Command | None:
        """A drain is told once, and may still become a stop."""
        if self._ending in (command.command, "stop"):
            return None
        self._ending = command.command
        return command

    def _end(self) -> WorkerEvent:
        """The last event: the gravest reason of any worker, with the words of the one that gave it."""
        reason: str = "planned"
        detail: str | None = None
        if self._given_up is not None:
            reason, detail = "breaker", self._given_up
        for member in self.members.values():
            its_reason, its_detail = member.last.reason or "error", member.last.detail
            if member.lost is not None:
                its_reason, its_detail = "lost", self._said_of(member)
            elif its_detail is not None and self._named:
                its_detail = f"worker {member.name}: {its_detail}"
            if graver(its_reason, reason):
                reason, detail = its_reason, its_detail
            elif its_reason == reason == "lost" and its_detail is not None and its_detail != detail:
                detail = f"{detail}; {its_detail}"
        return self.total("finished", reason, detail)
