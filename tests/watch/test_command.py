"""`kvprobe watch` as a process: on a pipe, on a terminal, against pages that fail, vanish and come back."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from kvprobe.cli.main import main
from kvprobe.watch.model import watch_schema
from tests.observe.conftest import PageServer
from tests.reference_server.server_process import ServerProcess
from tests.watch.pages import vllm
from tests.watch.terminal import PATIENCE_S, Terminal, command

FULL = vllm(running=8, waiting=3, kv=0.97, made=100)


def once(*argv: str) -> tuple[int, Any]:
    """(exit code, document), in this process: starting one costs more than all that is looked at."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["watch", *argv, "--interval", "200ms", "--once", "--json"])
    return code, json.loads(out.getvalue())


def test_once_gives_one_document_and_shows_what_is_not_reachable(server: Any) -> None:
    server.page = FULL
    code, document = once(server.url, "http://127.0.0.1:9/metrics")
    assert code == 0
    jsonschema.validate(document, watch_schema())
    here, gone = document["targets"]
    assert (here["engine"], here["looks"], here["numbers"]["kv_usage"]["value"]) == ("vllm", 2, 0.97)
    assert here["reading"] == {"id": "pressure", "text": "full and queueing: pressure"}
    assert (gone["reachable"], gone["failure"]["kind"]) == (False, "unreachable")
    assert gone["numbers"]["kv_usage"]["state"] == "scrape_failed"


def test_of_several_a_name_that_nobody_knows_is_shown_so(server: Any) -> None:
    server.page = FULL
    code, document = once(server.url, "http://no-such-host.invalid", "--i-own-this-target")
    assert code == 0
    here, gone = document["targets"]
    assert here["reachable"]
    assert (gone["reachable"], gone["failure"]["kind"]) == (False, "unreachable")
    assert "cannot resolve" in gone["reading"]["text"]
    assert once(server.url, "http://169.254.169.254")[0] == 3, "what is refused is not tried later"


@pytest.mark.parametrize(
    ("argv", "code", "problem"),
    [
        (["http://127.0.0.1:9"], 3, "unreachable"),
        (["http://169.254.169.254/latest", "--i-own-this-target"], 3, "guard"),
        (["http://[fd00:ec2::254]/", "--i-own-this-target"], 3, "guard"),
        (["http://192.0.2.1:8000"], 3, "guard"),
        (["ftp://127.0.0.1/"], 2, "bad_metrics"),
        (["http://user:s3cret@127.0.0.1/"], 2, "secret_in_url"),
        (["http://127.0.0.1:9", "--interval", "1"], 2, "bad_duration"),
        (["http://127.0.0.1:9", "--interval", "1ms"], 2, "bad_value"),
    ],
)
def test_refusals(argv: list[str], code: int, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *argv, "--once", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvprobe.error/1"
    assert document["errors"][0]["code"] == problem
    assert document["errors"][0]["fix"]
    assert "s3cret" not in json.dumps(document)


def test_a_page_of_no_engine_is_no_target(server: Any) -> None:
    server.page = "<html>hello</html>"
    code, document = once(server.url)
    assert (code, document["errors"][0]["code"]) == (3, "not_prometheus")


def read_lines(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> list[str]:
    """Lines of stdout up to the first that is wanted."""
    assert process.stdout is not None
    lines: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        if not line:
            break
        lines.append(line)
        if wanted(line):
            return lines
    raise AssertionError(f"not seen in {lines}")


@pytest.fixture
def watching() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(*argv, "--interval", "200ms"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_without_a_terminal_a_line_a_tick_through_an_outage(
    server: Any, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    server.page = FULL
    process = watching(server.url)
    read_lines(process, lambda line: line.endswith("| full and queueing: pressure\n"))
    server.status = 503
    read_lines(process, lambda line: "unreachable: gone for" in line)
    server.status, server.page = 200, vllm(running=1, waiting=0, kv=0.5, made=3)
    back = read_lines(process, lambda line: "restarted" in line)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert errors == ""
    assert not any("\x1b" in line for line in back)


def test_json_without_once_is_a_document_a_line(
    server: Any, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    process = watching(server.url, "--json")
    lines = read_lines(process, lambda line: json.loads(line)["targets"][0]["looks"] >= 3)
    assert [json.loads(line)["schema"] for line in lines] == ["kvprobe.watch/1"] * len(lines)


def test_nobody_reads_any_more(server: Any, watching: Callable[..., subprocess.Popen[str]]) -> None:
    process = watching(server.url)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141


def test_a_terminal_gets_a_page_that_renews_itself(server: Any) -> None:
    server.page = FULL
    with Terminal(server.url, "http://127.0.0.1:9") as terminal:
        first = terminal.until("full and queueing: pressure", "97.0 %", "Ctrl-C ends")
        assert "\x1b[" in first
        assert "cannot fetch the page" in first  # the other target
        server.page = vllm(running=2, waiting=0, kv=0.6, made=200)
        terminal.until("60 % and nothing waiting: healthy")
        server.status = 500
        terminal.until("gone for")
        server.status = 200
        terminal.until("60 % and nothing waiting: healthy")
        assert terminal.end() == 130
        assert "\x1b[?25h" in terminal.seen[-200:]  # the cursor is back


def test_a_terminal_without_colour_and_a_dumb_one(server: Any) -> None:
    server.page = FULL
    with (
        Terminal(server.url, environment={"NO_COLOR": "1"}) as plain,
        Terminal(server.url, environment={"TERM": "dumb"}) as dumb,
    ):
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain.until("pressure", "Ctrl-C ends"))
        assert plain.end(signal.SIGTERM) == 143
        assert "\x1b" not in dumb.until("pressure")
        assert dumb.end() == 130


def test_the_reference_server_under_load() -> None:
    """A pool that two requests fill, and four of them."""
    with ServerProcess("--model", "tiny", "--kv-memory", "1MiB", "--max-model-len", "256") as served:
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                body = {"model": "tiny", "prompt": "word " * 20, "max_tokens": 32}
                httpx.post(f"{served.url}/v1/completions", json=body, timeout=PATIENCE_S)

        users = [threading.Thread(target=ask) for _ in range(4)]
        for user in users:
            user.start()
        try:
            deadline = time.monotonic() + PATIENCE_S
            code, document = once(served.url)
            while document["targets"][0]["numbers"]["generated_tokens_per_s"]["value"] in (None, 0.0):
                assert time.monotonic() < deadline
                code, document = once(served.url)
        finally:
            stop.set()
            for user in users:
                user.join()
    target = document["targets"][0]
    assert (code, target["engine"]) == (0, "reference")
    assert target["engine_version"]
    numbers = target["numbers"]
    for name in ("kv_usage", "running", "waiting", "kv_pool_bytes", "preemptions_per_s"):
        assert numbers[name]["state"] == "read", name
        assert numbers[name]["series"].startswith("kvprobe:")
    assert numbers["running"]["value"] + numbers["waiting"]["value"] <= 4
    assert 0 <= numbers["kv_usage"]["value"] <= 1
    assert numbers["process_rss_bytes"]["state"] == "not_exported"


def test_a_target_that_hangs_does_not_hold_the_others_up(
    server: Any, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    released = threading.Event()
    with PageServer() as hanging:
        hanging.answer = lambda _handler: released.wait(PATIENCE_S)
        thread = threading.Thread(target=hanging.serve_forever, args=(0.01,))
        thread.start()
        try:
            process = watching(server.url, hanging.url, "--json")

            def looked_often(line: str) -> bool:
                good, bad = json.loads(line)["targets"]
                assert not bad["reachable"]
                return int(good["looks"]) >= 6

            read_lines(process, looked_often)
            lines = read_lines(process, lambda line: json.loads(line)["targets"][1]["failure"] is not None)
            assert json.loads(lines[-1])["targets"][1]["failure"]["kind"] == "timeout"
        finally:
            released.set()
            hanging.shutdown()
            thread.join()
