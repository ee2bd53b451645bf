"""The process: command line, start, stop, key, small pool."""

from __future__ import annotations

import signal
import subprocess
import sys

import httpx
import pytest
import torch

from reference_server.build import build_core
from reference_server.config import parse_arguments
from reference_server.errors import ConfigError
from reference_server.metrics import Metrics
from tests.reference_server.server_process import ServerProcess, events_of, until
from tests.reference_server.test_http import CHAT, chat


@pytest.fixture(scope="module")
def small() -> object:
    """A key, vLLM's names, few streams, and a pool of 31 blocks under a longer context."""
    with ServerProcess(
        *("--kv-memory", "2MiB", "--max-model-len", "2048", "--vllm-metric-names"),
        *("--api-key-env", "TEST_SERVER_KEY", "--max-streams", "3"),
        environment={"TEST_SERVER_KEY": "s3cret"},
    ) as process:
        yield process


KEY = {"authorization": "Bearer s3cret"}


def test_the_key_is_wanted(small: ServerProcess) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
        for path in (CHAT, "/tokenize"):
            reply = httpx.post(small.url + path, json=chat(), headers=headers)
            assert reply.status_code == 401
            assert reply.json()["error"]["type"] == "AuthenticationError"
    assert httpx.post(small.url + CHAT, json=chat(), headers=KEY).status_code == 200
    assert httpx.get(small.url + "/health").status_code == 200
    assert "s3cret" not in small.log()


def test_a_request_larger_than_the_pool_is_refused_at_once(small: ServerProcess) -> None:
    for body in (chat("x" * 600), chat("x" * 100, max_tokens=500), chat("x" * 600, max_tokens=None)):
        reply = httpx.post(small.url + CHAT, json=body, headers=KEY)
        assert reply.status_code == 400
        assert "pool" in reply.json()["error"]["message"]
    assert "the pool is smaller than --max-model-len" in small.log()


def test_a_request_as_large_as_the_pool_runs(small: ServerProcess) -> None:
    reply = httpx.post(small.url + CHAT, json=chat("x" * 489, max_tokens=4), headers=KEY, timeout=60)
    assert reply.json()["usage"]["total_tokens"] == 31 * 16 + 1


def test_both_names_stand_on_the_page_but_not_for_our_own(small: ServerProcess) -> None:
    page = httpx.get(small.url + "/metrics").text
    for name in (
        "num_requests_running",
        "kv_cache_usage_perc",
        "prefix_cache_hits_total",
        "cache_config_info",
    ):
        assert f"\nkvprobe:{name}{{" in page
        assert f"\nvllm:{name}{{" in page
    assert "\nkvprobe:kv_blocks_total{" in page
    assert "vllm:kv_blocks" not in page


def test_more_streams_than_allowed_get_429(small: ServerProcess) -> None:
    open_ones = [small.post_raw(CHAT, chat("x", max_tokens=450, stream=True), KEY) for _ in range(3)]
    try:
        until(lambda: small.metric("num_requests_running") + small.metric("num_requests_waiting") == 3)
        reply = httpx.post(small.url + CHAT, json=chat(), headers=KEY)
        assert reply.status_code == 429
        assert reply.headers["retry-after"]
    finally:
        for connection in open_ones:
            connection.close()
    until(lambda: small.metric("num_requests_running") + small.metric("num_requests_waiting") == 0)
    assert httpx.post(small.url + CHAT, json=chat(), headers=KEY).status_code == 200


def test_sigterm_drains_and_exits_0() -> None:
    with ServerProcess("--kv-memory", "16MiB") as server:
        assert server.ready["pid"] == server.process.pid
        assert server.ready["model"] == "tiny"
        with httpx.stream(
            "POST", server.url + CHAT, json=chat(max_tokens=150, stream=True), timeout=60
        ) as reply:
            pieces = reply.iter_text()
            text = next(pieces)
            server.process.send_signal(signal.SIGTERM)
            text += "".join(pieces)
        assert len(events_of(text)) == 151
        assert server.process.wait(20) == 0
        assert "finishing the requests that are open" in server.log()
        assert "Traceback" not in server.log()


def test_the_parents_end_stops_it_at_once_and_a_port_in_use_is_said() -> None:
    with ServerProcess("--kv-memory", "16MiB") as server:
        port = str(server.address[1])
        refused = _run("--port", port)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"port {port} on 127.0.0.1 is in use" in refused.stderr
        with server.post_raw(CHAT, chat(max_tokens=3000, stream=True)):
            until(lambda: server.metric("generation_tokens_total") > 0)
            assert server.process.stdin is not None
            server.process.stdin.close()
            assert server.process.wait(20) == 0
        assert "Traceback" not in server.log()


def test_ctrl_c_drains_and_a_second_one_stops_at_once() -> None:
    with ServerProcess("--kv-memory", "16MiB") as server:
        with server.post_raw(CHAT, chat(max_tokens=3000, stream=True)):
            until(lambda: server.metric("generation_tokens_total") > 0)
            server.process.send_signal(signal.SIGINT)
            until(lambda: "finishing the requests" in server.log())
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(20) == 130
        assert "Traceback" not in server.log()


def test_who_reads_too_slowly_is_cut_at_the_end_of_the_drain() -> None:
    """With a word, and without the traceback of a cancelled task."""
    short = "from reference_server import __main__ as m, serve; serve.DRAIN_S = 0.5; m.sys.exit(m.main())"
    with ServerProcess("--kv-memory", "16MiB", program=("-c", short)) as server:
        with server.post_raw(CHAT, chat(max_tokens=3000, stream=True)):
            until(lambda: server.metric("generation_tokens_total") > 0)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(20) == 0
        assert "stopping at once: the time to finish is over" in server.log()
        assert "Traceback" not in server.log()
        assert "ERROR" not in server.log()


@pytest.mark.parametrize("key", ["", "  ", "two\nlines", "k\u00e9y"])
def test_a_key_that_no_header_carries_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="--api-key-env K"):
        parse_arguments(["--api-key-env", "K", "--host", "0.0.0.0"], {"K": key})


def test_spaces_around_a_key_are_no_part_of_it() -> None:
    assert parse_arguments(["--api-key-env", "K"], {"K": " s3cret\n"}).api_key == "s3cret"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.parametrize("imported", ["torch._C", "reference_server.api"])
def test_a_signal_before_it_listens_stops_it_without_a_word(
    imported: str, number: signal.Signals, code: int
) -> None:
    """Sent by the process to itself from inside an import, where an exception could be swallowed."""
    script = f"""
import os, runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {imported!r}:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ['--port', '0', '--stop-with-parent']
runpy.run_module('reference_server', run_name='__main__')
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input="", capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_step_larger_than_the_context_can_be_asked_for() -> None:
    with ServerProcess("--max-num-batched-tokens", "40000", "--max-model-len", "64") as server:
        assert httpx.post(server.url + CHAT, json=chat(), timeout=60).status_code == 200


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost"])
def test_the_url_can_be_used_as_it_is(host: str) -> None:
    with ServerProcess("--host", host) as server:
        assert httpx.get(server.url + "/health").status_code == 200


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reference_server", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin", **environment},
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--allocator", "buddy"), "contiguous-exact"),
        (("--kv-dtype", "fp4"), "int8"),
        (("--preemption", "stop"), "recompute"),
        (("--device", "tpu"), "cuda"),
        (("--kv-memory", "64MiB", "--device-memory", "64MiB"), "not both"),
        (("--gpu-memory-utilization", "1.2"), "fraction above 0, up to 1"),
        (("--gpu-memory-utilization", "0.5", "--kv-memory", "4MiB"), "leave one of the two out"),
        (("--ailment", "salted", "--no-prefix-caching"), "needs prefix caching"),
        (("--request-deadline", "0"), "seconds above 0"),
        (("--ailment", "fragmented", "--ailment", "salted"), "needs --allocator paged"),
        (("--ailment", "bad-kv-scales", "--kv-dtype", "fp16"), "a format with scales"),
        (("--kv-memory", "256"), "write a number and a unit"),
        (("--kv-memory", "256Mib2"), "256Mib2"),
        (("--block-size", "24"), "power of two"),
        (("--block-size", "0"), "whole number from 1"),
        (("--max-num-seqs", "-1"), "whole number"),
        (("--port", "70000"), "65535"),
        (("--host", "0.0.0.0"), "--api-key-env"),
        (("--host", "192.0.2.1"), "--api-key-env"),
        (("--host", "::"), "--api-key-env"),
        (("--host", ""), "an address or a name is needed"),
        (("--api-key-env", "NOT_SET_ANYWHERE"), "not set"),
        (("--colour", "red"), "--colour"),
        (("--ailment", "x"), "--ailment"),
    ],
)
def test_bad_options_are_one_line_and_exit_2(arguments: tuple[str, ...], said: str) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device-memory", "32MiB"), "no memory is left for KV"),
        (("--device-memory", "45MiB"), "phase profile"),
        (("--model", "/models/x"), "config.json"),
        (("--preemption", "swap", "--swap-space", "1KiB"), "--swap-space is too small"),
        (("--max-model-len", "40000"), "at most 32768"),
    ],
)
def test_what_is_known_once_the_model_is_there_is_a_config_error(
    arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build_core(parse_arguments(arguments, {}), Metrics("tiny", vllm_names=False))


def test_a_start_that_fails_late_exits_2_with_one_last_line() -> None:
    done = _run("--kv-memory", "1KiB")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("kvprobe serve: --kv-memory is too small")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is refused elsewhere")
def test_cuda_is_refused_where_there_is_none() -> None:
    done = _run("--device", "cuda")
    assert done.returncode == 2
    assert "torch sees no CUDA device" in done.stderr


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']; import reference_server.__main__ as m\ntry:\n    m.main()\n"
    )
    code += "except SystemExit as e:\n    print('torch' in sys.modules, e.code)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "False 0"
