"""Process and host readings against real processes."""

from __future__ import annotations

import subprocess
import sys
import time

from kvprobe.observe.host import HostProbe, ProcessProbe

_PARENT_AND_CHILD = """
import subprocess, sys
block = bytearray(60_000_000)
code = "b = bytearray(50_000_000); print('ready', flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
input()
child.communicate(b"\\n")
print("alone", flush=True)
input()
"""


def test_children_count_and_their_cpu_stays_when_they_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT_AND_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        probe = ProcessProbe(process.pid)
        both = dict(probe.read())
        assert len(probe.pids()) == 2
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        alone = dict(ProcessProbe(process.pid).read())
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.wait()
        gone = dict(probe.read())
    assert both["server.rss_bytes"] is not None
    assert alone["server.rss_bytes"] is not None
    assert both["server.rss_bytes"] > 110_000_000
    assert 60_000_000 < alone["server.rss_bytes"] < both["server.rss_bytes"] - 40_000_000
    assert both["server.cpu_s_total"] is not None
    assert alone["server.cpu_s_total"] is not None
    assert alone["server.cpu_s_total"] >= both["server.cpu_s_total"] - 0.02
    assert (both["server.open_fds"] or 0) > (alone["server.open_fds"] or 0) >= 3
    assert gone == {"server.rss_bytes": None, "server.cpu_s_total": None, "server.open_fds": None}


def test_a_process_that_is_none_reads_null() -> None:
    for pid in (2**31 - 1, -5, 10**30):
        assert dict(ProcessProbe(pid).read("x")) == {
            "x.rss_bytes": None,
            "x.cpu_s_total": None,
            "x.open_fds": None,
        }


def test_the_host_is_read_in_its_units() -> None:
    probe = HostProbe()
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        sum(range(1000))
    first, second = dict(probe.read()), dict(probe.read())
    assert first["host.cpu_ratio"] is not None
    assert 0.0 < first["host.cpu_ratio"] <= 1.0
    assert (first["host.memory_available_bytes"] or 0) > 1_000_000
    for name in ("clock.realtime_minus_monotonic_s", "clock.boottime_minus_monotonic_s"):
        assert first[name] is not None
        assert second[name] is not None
        assert abs(first[name] - second[name]) < 1.0
    assert abs((first["clock.realtime_minus_monotonic_s"] or 0) - (time.time() - time.monotonic())) < 5
