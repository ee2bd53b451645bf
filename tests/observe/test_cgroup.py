"""cgroup v1 and v2 and PSI, on files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.observe.cgroup import CgroupProbe, PressureProbe, cpu_quota_cores

PSI = (
    "some avg10=0.50 avg60=0.10 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=20\n"
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_version_2_takes_the_lowest_limit_above(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/42/cgroup": "0::/pod/app\n",
            "sys/fs/cgroup/pod/memory.max": "8589934592\n",
            "sys/fs/cgroup/pod/app/memory.max": "max\n",
            "sys/fs/cgroup/pod/app/memory.current": "1073741824\n",
            "sys/fs/cgroup/pod/app/memory.peak": "2147483648\n",
            "sys/fs/cgroup/pod/app/memory.events": "low 0\nhigh 0\nmax 5\noom 3\noom_kill 2\n",
            "sys/fs/cgroup/pod/app/memory.pressure": PSI,
        },
    )
    probe = CgroupProbe(42, tmp_path)
    assert probe.describe() == {
        "version": 2,
        "memory_limit_bytes": 8 * 2**30,
        "set_by": str(tmp_path / "sys/fs/cgroup/pod"),
    }
    assert dict(probe.read()) == {
        "cgroup.memory_used_bytes": 2**30,
        "cgroup.memory_peak_bytes": 2**31,
        "cgroup.memory_limit_bytes": 2**33,
        "cgroup.oom_kills_total": 2,
        "cgroup.pressure_memory_some_s_total": 1.5,
        "cgroup.pressure_memory_full_s_total": pytest.approx(2e-5),
    }


def test_version_1_and_its_way_to_say_no_limit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "12:memory:/docker/abc\n11:cpu,cpuacct:/x\n0::/\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "4096\n",
            "sys/fs/cgroup/memory/docker/abc/memory.oom_control": "under_oom 0\noom_kill 7\n",
        },
    )
    probe = CgroupProbe(None, tmp_path)
    assert probe.describe() == {"version": 1, "memory_limit_bytes": None, "set_by": None}
    assert dict(probe.read()) == {"cgroup.memory_used_bytes": 4096, "cgroup.oom_kills_total": 7}


def test_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/9/cgroup": "0::/kubepods/pod1/c1\n",
            "sys/fs/cgroup/memory.max": "1048576\n",
            "sys/fs/cgroup/memory.current": "99\n",
        },
    )
    assert dict(CgroupProbe(9, tmp_path).read()) == {
        "cgroup.memory_used_bytes": 99,
        "cgroup.memory_limit_bytes": 2**20,
    }


@pytest.mark.parametrize("text", [None, "", "nonsense\n", "1:name=systemd:/\n"])
def test_no_cgroup_no_reading(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        write(tmp_path, {"proc/5/cgroup": text})
    probe = CgroupProbe(5, tmp_path)
    assert probe.describe() is None
    assert probe.read() == []


def test_pressure_of_the_machine(tmp_path: Path) -> None:
    assert PressureProbe(tmp_path).read() == []
    write(tmp_path, {"proc/pressure/memory": PSI, "proc/pressure/cpu": "some total=x\n\n"})
    assert dict(PressureProbe(tmp_path).read()) == {
        "host.pressure_memory_some_s_total": 1.5,
        "host.pressure_memory_full_s_total": pytest.approx(2e-5),
    }


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (
            {
                "proc/self/cgroup": "0::/pod/app\n",
                "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/pod/app/cpu.max": "max 100000\n",
            },
            1.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/app\n0::/\n",
                "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({}, None),
    ],
    ids=["version 2", "version 1", "no limit", "nothing"],
)
def test_the_lowest_quota_of_processor_time(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    write(tmp_path, files)
    assert cpu_quota_cores(tmp_path) == cores
