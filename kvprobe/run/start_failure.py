"""Why the bundled server did not start: its start-up log, diagnosed as `kvprobe diagnose` would."""

from __future__ import annotations

from pathlib import Path

from kvprobe.errors import KvprobeError, Problem, TargetError, UsageError
from kvprobe.evidence.events import Event


def ended(log_path: Path, tail: str, exit_code: int | None) -> KvprobeError:
    """The server ended before it listened: with the cause where its log proves one. `tail` is the end of
    the log in one line. A server that refuses its options or budget (code 2) is a configuration error."""
    refused = exit_code in (0, 2)  # 0: it did what an option such as --help asks for
    kind, code = (UsageError, "server_args") if refused else (TargetError, "server_start")
    named = _cause(log_path)
    if named is not None:
        cause, why, remedy = named
        last = tail.rpartition(" / ")[2]
        return kind(
            Problem(
                code, f"the bundled server could not start: {cause}: {why} (its log ends: {last})", remedy
            )
        )
    if not refused:
        message = f"the bundled server ended with code {exit_code}: {tail}"
        return kind(Problem(code, message, "see `kvprobe serve`"))
    how = "refused its options" if exit_code == 2 else "ended without listening"
    return kind(Problem(code, f"the bundled server {how}: {tail}", "see `kvprobe serve --help`"))


def _cause(log_path: Path) -> tuple[str, str, str] | None:
    """(cause, why, remedies) of the log; null where it proves none."""
    from kvprobe.diagnose.causes import HEALTHY, UNKNOWN
    from kvprobe.diagnose.log_judge import diagnose_log
    from kvprobe.diagnose.log_view import LogView
    from kvprobe.observe.logs.intake import read_logs

    try:
        read = read_logs([str(log_path)])
    except (KvprobeError, OSError):
        return None
    events: list[Event] = list(read.events)
    view = LogView(
        events=events, engine=read.engine, engine_version=read.engine_version, ended=dict(read.ended)
    )
    found = diagnose_log(view)
    if found.primary in (HEALTHY, UNKNOWN, "not_memory") or not found.findings:
        return None
    first = found.findings[0]
    return first.cause, first.why.rstrip("."), "; or ".join(first.remedy)
