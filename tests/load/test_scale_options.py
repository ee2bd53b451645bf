"""--processes, --master, --worker: what makes no crew is refused before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.load.jobs_remote import address_text
from kvprobe.load.workload import Workload
from kvprobe.run.crews import check_scale, parse_address
from kvprobe.run.options import RunOptions
from kvprobe.run.progress import Silent
from kvprobe.run.worker_side import conduct_worker
from tests.load.worker_kit import workload


def made(users: int) -> Workload:
    return Workload.model_validate(workload({"closed": {"users": users}}, requests=9))


@pytest.mark.parametrize(
    ("options", "users", "code"),
    [
        ({"processes": "0"}, 4, "bad_option"),
        ({"processes": "many"}, 4, "bad_option"),
        ({"processes": "257"}, 4, "bad_option"),
        ({"processes": "4"}, 2, "too_many_workers"),
        ({"bind": "0.0.0.0"}, 4, "conflict"),
        ({"expect_workers": "2"}, 4, "conflict"),
        ({"master": True, "bind": "a b"}, 4, "bad_option"),
        ({"master": True, "bind": "[::1]:70000"}, 4, "bad_option"),
        ({"master": True, "expect_workers": "9"}, 2, "too_many_workers"),
        ({"master": True, "processes": "2", "expect_workers": "1"}, 2, "too_many_workers"),
    ],
)
def test_options_that_make_no_crew(options: dict[str, Any], users: int, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_scale(RunOptions(workload="distinct", **options), made(users))
    assert caught.value.problems[0].code == code


def test_a_port_that_is_taken_is_said_before_anything_is_started() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        bind = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UsageError, match="the port is taken"):
            check_scale(RunOptions(workload="distinct", master=True, bind=bind), made(3))
    check_scale(RunOptions(workload="distinct", master=True, bind="*:0"), made(3))


def test_an_address_of_another_machine_is_said() -> None:
    with pytest.raises(UsageError, match="no address of this machine"):
        check_scale(RunOptions(workload="distinct", master=True, bind="192.0.2.7"), made(3))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"processes": "3"},
        {"master": True, "bind": "127.0.0.1:0"},
        {"master": True, "bind": "127.0.0.1:0", "processes": "1", "expect_workers": "2"},
    ],
)
def test_options_that_do(options: dict[str, Any]) -> None:
    check_scale(RunOptions(workload="distinct", **options), made(3))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", ("127.0.0.1", 5557)),
        ("10.0.0.7", ("10.0.0.7", 5557)),
        ("bench-1.example:6000", ("bench-1.example", 6000)),
        ("[fd00::7]:6000", ("fd00::7", 6000)),
        ("*:6000", ("*", 6000)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text, "--bind") == parsed
    assert parse_address(address_text(*parsed), "--bind") == parsed


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"worker_of": "127.0.0.1:99999"}, "bad_option"),
        ({"worker_of": ":5557"}, "bad_option"),
        ({"worker_of": "127.0.0.1", "target": "http://127.0.0.1:1"}, "conflict"),
        ({"worker_of": "127.0.0.1", "thresholds": ("ttft.p95 < 1s",)}, "conflict"),
        ({"worker_of": "127.0.0.1", "api_key_env": "sk-canary"}, "bad_option"),
        ({"worker_of": "127.0.0.1", "api_key_env": "KVPROBE_TEST_NO_SUCH_KEY"}, "missing_api_key"),
    ],
)
def test_a_worker_takes_from_the_master_what_is_the_masters(
    options: dict[str, Any], code: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        conduct_worker(RunOptions(workload="distinct", out=tmp_path / "out", **options), Silent())
    assert caught.value.problems[0].code == code
    assert not (tmp_path / "out").exists()
