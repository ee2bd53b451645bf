"""Who held the cache when it ran out, and which few requests hold how much of it over time."""

from __future__ import annotations

import msgspec
import numpy as np

from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.outcome import Rows
from kvprobe.plan.simulate.server import Server

SHOWN = 10
FEW = 0.01


class Holder(msgspec.Struct, kw_only=True):
    """A request in the pool: its line in the trace, seconds since it arrived, its share of the pool."""

    line: int
    session: str | None
    tokens: int
    blocks: int
    share: float
    age_s: float


class Exhaustion(msgspec.Struct, kw_only=True):
    """A moment at which room was refused. `kind`: `preemption` (to a running request) or `admission` (to
    a waiting one). `wanted_blocks` is what the engine asks for before it goes on, which may be more than it
    takes; `wanted_by_line` is null where several decoding requests wanted a block each."""

    t_s: float
    kind: str
    wanted_blocks: int
    available_blocks: int
    running: int
    wanted_by_line: int | None
    holders: list[Holder]


class Exhaustions(msgspec.Struct, kw_only=True):
    """`count` moments in all; `moments` are all of them or some, spread over time, largest holders first."""

    count: int
    first_s: float | None
    moments: list[Exhaustion]


class HeavyRequest(msgspec.Struct, kw_only=True):
    """`share` of all byte-seconds."""

    line: int
    session: str | None
    in_tokens: int
    out_tokens: int
    share: float


class Concentration(msgspec.Struct, kw_only=True):
    """The `requests_share` of requests that hold most, and the share of all byte-seconds that is theirs.

    Bytes are those of a request's tokens (reserved ones where the allocator reserves), shared ones counted
    for each holder.
    """

    requests_share: float
    requests: int
    byte_seconds_share: float
    byte_seconds: float | None
    heaviest: list[HeavyRequest]


def exhaustions(server: Server, rows: Rows) -> Exhaustions:
    """The kept moments of a simulation that is over."""
    count = int(server.sim.n[b.SNAPS])
    found = [_moment(server, rows, at) for at in range(count)]
    return Exhaustions(
        count=int(server.sim.n[b.SNAP_SEEN]), first_s=found[0].t_s if found else None, moments=found
    )


def _moment(server: Server, rows: Rows, at: int) -> Exhaustion:
    row = server.sim.snap[at]
    wants = int(row[b.N_FOR])
    holders = []
    for place in range(b.SNAP_HOLDERS):
        number, tokens, blocks, age = row[b.N_FIRST + 4 * place : b.N_FIRST + 4 * place + 4]
        if number < 0:
            break
        holders.append(
            Holder(
                line=int(rows.lines[int(number)]),
                session=rows.session(int(number)),
                tokens=int(tokens),
                blocks=int(blocks),
                share=float(blocks) / server.settings.total,
                age_s=float(age),
            )
        )
    return Exhaustion(
        t_s=float(row[b.N_AT]),
        kind="preemption" if row[b.N_KIND] == b.PREEMPTION else "admission",
        wanted_blocks=int(row[b.N_WANTED]),
        available_blocks=int(row[b.N_AVAIL]),
        running=int(row[b.N_RUNNING]),
        wanted_by_line=int(rows.lines[wants]) if wants >= 0 else None,
        holders=holders,
    )


def concentration(rows: Rows, bytes_per_token: float | None, few: float = FEW) -> Concentration | None:
    """Of all byte-seconds, the share of the heaviest requests; null when nobody held anything."""
    total = float(rows.held.sum())
    if not total:
        return None
    order = np.argsort(rows.held)[::-1]
    held = int((rows.held > 0).sum())
    count = max(1, round(few * held))
    heaviest = [
        HeavyRequest(
            line=int(rows.lines[row]),
            session=rows.session(int(row)),
            in_tokens=int(rows.in_tokens[row]),
            out_tokens=int(rows.out_tokens[row]),
            share=float(rows.held[row]) / total,
        )
        for row in order[:SHOWN]
        if rows.held[row] > 0
    ]
    return Concentration(
        requests_share=few,
        requests=count,
        byte_seconds_share=float(rows.held[order[:count]].sum()) / total,
        byte_seconds=None if bytes_per_token is None else total * bytes_per_token,
        heaviest=heaviest,
    )
