"""The load generator limits or distorts: its own fault, and the run is invalid."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.diagnose.causes import CLIENT_BOUND
from kvprobe.diagnose.issues import CLIENT_CODES, Code, Issue
from kvprobe.diagnose.model import Evidence, Finding
from kvprobe.diagnose.rules.base import finding

_SOURCE: dict[Code, str] = {
    "late_client": "client.loop_lag_s, requests.intended_ns, requests.sent_ns",
    "batched_reads": "requests.gaps_ns, requests.shared_receive_chunks",
    "client_cpu": "client.cpu_ratio",
    "client_descriptors": "requests.failure",
    "client_stood_still": "client.loop_lag_s",
    "lost_records": "opened.jsonl",
}
_CHECK_FIRST: dict[Code, str] = {
    "late_client": "what else ran on the client's machine during the run",
    "batched_reads": "what else ran on the client's machine during the run",
    "client_cpu": "requests a second and streams for each client process",
    "client_descriptors": "`ulimit -n` against the number of streams",
    "client_stood_still": "what stopped the client's process (a signal, a suspended machine, a full CPU)",
    "lost_records": "log.txt of the run directory",
}
_REMEDY: dict[Code, str] = {
    "late_client": "fewer streams or a lower rate for each client process, or a client on its own machine",
    "batched_reads": "fewer streams for each client process, or a client on its own machine",
    "client_cpu": "fewer streams for each client process, or a faster machine",
    "client_descriptors": "raise `ulimit -n` above the number of streams",
    "client_stood_still": "run again on a machine that lets the client run",
    "lost_records": "report the error in log.txt as a defect of kvprobe",
}


def client_bound(issues: Sequence[Issue]) -> Finding | None:
    """Needs: an issue of the client itself. Certain: it is the client's own measurement of itself."""
    own = [i for i in issues if i.level == "invalid" and i.code in CLIENT_CODES]
    if not own:
        return None
    codes = list(dict.fromkeys(i.code for i in own))
    return finding(
        CLIENT_BOUND,
        "certain",
        f"The load generator distorts this measurement: {own[0].text}.",
        [Evidence(source=_SOURCE[i.code], text=i.text, facts=i.facts) for i in own],
        check_first=list(dict.fromkeys(_CHECK_FIRST[code] for code in codes)),
        remedy=list(dict.fromkeys(_REMEDY[code] for code in codes)),
        would_change_my_mind=["the same latencies from a client that was neither late nor stopped"],
    )
