"""The traps of the truth server, each met by a real load worker: does it give the defined value?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from truth_rig import TOKENS, call, start_worker, truth_server

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.spool import read_spool
from kvprobe.load.job import Command

Row = dict[str, Any]


@dataclass(frozen=True)
class Trap:
    """`check` says what is wrong with a record beside the server's row of it; null when nothing is."""

    name: str
    switches: tuple[str, ...]
    defined: str
    check: Callable[[RequestRecord, Row], str | None]


def _whole(record: RequestRecord, row: Row) -> str | None:
    if record.failure is not None:
        return f"failed: {record.failure}"
    if record.content_chunks != len(row["writes_ns"]):
        return f"{record.content_chunks} chunks of {len(row['writes_ns'])}"
    if record.first_token_ns is None or record.first_token_ns < row["before_ns"][0]:
        return "the first token is stamped before it left"
    return None


def _failed(kind: str, chunks: int) -> Callable[[RequestRecord, Row], str | None]:
    def check(record: RequestRecord, row: Row) -> str | None:
        if record.failure != kind:
            return f"{record.failure} in the place of {kind}"
        return None if record.content_chunks == chunks else f"{record.content_chunks} chunks kept of {chunks}"

    return check


def _role(record: RequestRecord, row: Row) -> str | None:
    if record.first_chunk_ns is None or record.first_token_ns is None:
        return "no first chunk"
    early = (record.first_token_ns - record.first_chunk_ns) / 1e6
    wrong = None if early > 50 else f"the role chunk counts as a token ({early:.0f} ms)"
    return _whole(record, row) or wrong


def _reasoning(record: RequestRecord, row: Row) -> str | None:
    if record.first_visible_ns is None or record.first_token_ns is None:
        return "no first token"
    ok = record.first_visible_ns == record.first_token_ns + sum(record.gaps_ns[:3])
    return _whole(record, row) or (None if ok else "the first visible token is not the fourth chunk")


def _usage(record: RequestRecord, row: Row) -> str | None:
    wrong = record.completion_tokens != TOKENS
    return _whole(record, row) or (f"{record.completion_tokens} tokens of {TOKENS}" if wrong else None)


def _no_usage(record: RequestRecord, row: Row) -> str | None:
    known = record.completion_tokens is not None
    return _whole(record, row) or ("tokens that nobody counted" if known else None)


def _stall(record: RequestRecord, row: Row) -> str | None:
    longest = max(record.gaps_ns, default=0) / 1e6
    return _whole(record, row) or (None if longest > 250 else f"the longest gap is {longest:.0f} ms")


TRAPS = (
    Trap("early role chunk", ("--role-chunk", "immediate"), "the first chunk, and no token", _role),
    Trap("reasoning before the answer", ("--reasoning", "3"), "tokens, visible later", _reasoning),
    Trap("several tokens a chunk", ("--tokens-per-chunk", "4"), "tokens by usage, gaps by chunk", _usage),
    Trap("no usage", ("--no-usage",), "token counts are null", _no_usage),
    Trap(
        "error in the stream",
        ("--error-after", "5"),
        "in_band_error",
        _failed("in_band_error", 5),
    ),
    Trap("stall", ("--stall-ms", "300"), "one gap of 320 ms", _stall),
    Trap("drop", ("--drop-after", "5"), "truncated, 5 chunks kept", _failed("truncated", 5)),
    Trap("writes split in two", ("--split",), "each chunk once, at its end", _whole),
    Trap("four chunks in one write", ("--coalesce", "4"), "each chunk once, gaps of 0 between", _whole),
    Trap("comment before the stream", ("--comment",), "no chunk and no token", _whole),
    Trap("status 503", ("--status", "503"), "status, no latency", _failed("status", 0)),
)


def meet(trap: Trap, folder: Path) -> str:
    """`ok`, or what is wrong."""
    spool = folder / f"{trap.name.replace(' ', '-')}.jsonl"
    with truth_server("--ttft", "100", "--itl", "20", *trap.switches) as url:
        child = start_worker(url, 1, 2, 0, [spool])
        child.hear()
        child.say(msgspec.json.encode(Command(command="go", t0_ns=0)))
        child.hear_until(b'"finished"')
        child.cpu_at_end_s()
        rows = {row["id"]: row for row in call(url + "/truth?rows=1")["rows"]}
    records = read_spool(spool).records
    found = [trap.check(r, rows.get(r.server_request_id or "", {})) for r in records]
    wrong = [text for text in found if text]
    if not records:
        return "no row was written"
    return "; ".join(dict.fromkeys(wrong)) if wrong else "ok"


def meet_all() -> dict[str, str]:
    """Each trap by name: `ok`, or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        return {trap.name: meet(trap, Path(folder)) for trap in TRAPS}


def trap_table(found: dict[str, str]) -> str:
    """Markdown: each trap, the value that is defined for it, and whether a worker gave it."""
    lines = ["| trap | defined value | kvprobe |", "| --- | --- | --- |"]
    lines += [f"| {trap.name} | {trap.defined} | {found[trap.name]} |" for trap in TRAPS]
    return "\n".join(lines)
