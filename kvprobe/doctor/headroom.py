"""Can this machine's client hold so many streams? A real, short run against a server that is never late."""

from __future__ import annotations

import select
import subprocess
import tempfile
from pathlib import Path

from kvprobe import children
from kvprobe.doctor.model import Check, Status
from kvprobe.doctor.null_server import FIRST_TOKEN_S
from kvprobe.errors import KvprobeError
from kvprobe.summary.units import percent, plural, seconds

DURATION_S = 3
START_TIMEOUT_S = 30.0
LATE_SHARE = 0.05
"""Of the TTFT: what MEASURING calls a late client, beside 10 ms of lag."""
_WORKLOAD = """\
name: self-test
kind: distinct
prompt: {tokens: 64}
output: {tokens: 32}
arrival: {closed: {users: %d}}
duration: %ds
drain: 2s
warmup: {duration: 1s}
"""


def headroom(streams: int) -> Check:
    """The client's own error at `streams` streams: TTFT it measured against the 50 ms that were."""
    try:
        with tempfile.TemporaryDirectory(prefix="kvprobe-doctor-") as folder:
            return _measure(streams, Path(folder))
    except (OSError, KvprobeError, ValueError) as error:
        text = f"the self-test could not run: {error}"
        return Check(
            id="client_headroom", status="unknown", text=text, fix="see the descriptors and disk checks"
        )


def _measure(streams: int, folder: Path) -> Check:
    from kvprobe.run.options import RunOptions
    from kvprobe.run.progress import choose
    from kvprobe.run.session import conduct

    path = folder / "self_test.yaml"
    path.write_text(_WORKLOAD % (streams, DURATION_S), encoding="utf-8")
    server = subprocess.Popen(
        children.module_command("kvprobe.doctor.null_server"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=children.environment(),
        start_new_session=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        # An empty line, of a server that ended at once, is no port either.
        started, _, _ = select.select([server.stdout], [], [], START_TIMEOUT_S)
        if not (line := server.stdout.readline() if started else b"").strip().isdigit():
            raise ValueError("its server did not start")
        port = int(line)
        options = RunOptions(
            workload=str(path), target=f"http://127.0.0.1:{port}", out=folder / "runs", own_target=True
        )
        outcome = conduct(options, choose(quiet=True))
    finally:
        server.stdin.close()
        try:
            server.wait(2.0)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
    summary, diagnosis = outcome.summary, outcome.diagnosis
    if summary is None or diagnosis is None or summary.metrics.ttft_s.p50 is None:
        text = "the self-test gave no numbers"
        return Check(id="client_headroom", status="unknown", text=text, fix="run it again on a quiet machine")
    return _judge(streams, summary.metrics.ttft_s.p50, summary.metrics.ttft_s.p99, diagnosis.validity)


def _judge(streams: int, p50_s: float, p99_s: float | None, validity: object) -> Check:
    """`validity` is the run's own verdict on its client."""
    error = p50_s / FIRST_TOKEN_S - 1.0
    valid = bool(getattr(validity, "valid", True))
    reasons = list(getattr(validity, "reasons", []))
    facts = {
        "streams": streams,
        "true_ttft_s": FIRST_TOKEN_S,
        "ttft_p50_s": p50_s,
        "ttft_p99_s": p99_s,
        "ttft_p50_error": error,
    }
    tail = f", p99 {seconds(p99_s)}" if p99_s is not None else ""
    text = (
        f"{plural(streams, 'stream')} against a server that is never late: TTFT p50 {seconds(p50_s)}{tail} "
        f"where {seconds(FIRST_TOKEN_S)} is true ({percent(error)} off)"
    )
    if valid and error <= LATE_SHARE:
        return Check(id="client_headroom", status="ok", text=text, facts=facts)
    why = f"; {reasons[0]}" if reasons else ""
    fix = "use fewer streams, more --processes, or a machine that nothing else uses"
    status: Status = "warn" if valid else "fail"
    return Check(id="client_headroom", status=status, text=text + why, fix=fix, facts=facts)
