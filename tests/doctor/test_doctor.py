"""The examination against real servers: one that is well, some that lack something, and none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.cli.main import main
from kvprobe.doctor import asking, machine
from kvprobe.doctor.model import doctor_schema
from kvprobe.doctor.prefix_probe import possible_units, probe
from kvprobe.doctor.target import stream
from kvprobe.load.chunks import Usage
from tests.e2e.conftest import Result, Server, command, kvprobe, start_server
from tests.faults.kit import (
    DONE,
    OK_HEAD,
    Exchange,
    Fault,
    answer,
    chunk,
    data,
    http_chunk,
    playing,
    serve,
    usage,
)
from tests.faults.test_tls_faults import certificate, server_context

__all__ = ["start_server"]
IDS = {
    "tls", "reachable", "model", "stream", "usage", "tokenizer", "metrics", "prefix_cache", "nvml",
    "descriptors", "disk", "cores", "proxies", "client_headroom",
}  # fmt: skip


def checks(result: Result) -> dict[str, dict[str, Any]]:
    jsonschema.validate(result.document, doctor_schema())
    found = {c["id"]: c for c in result.document["checks"]}
    assert found.keys() == IDS
    for check in found.values():
        if check["status"] in ("warn", "fail"):
            assert check["fix"], check
            assert "\n" not in check["fix"]
    return found


def test_a_server_that_is_well(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server("--block-size", "32")
    result = kvprobe("doctor", server.url, "--no-self-test", "--json", "--out", str(tmp_path))
    assert result.code == 0, result.err
    found = checks(result)
    good = {"reachable", "model", "stream", "usage", "tokenizer", "metrics", "prefix_cache", "descriptors"}
    assert {i for i in good if found[i]["status"] != "ok"} == set()
    assert found["metrics"]["facts"]["engine"] == "reference"
    assert found["prefix_cache"]["facts"]["match_unit_candidates_tokens"] == [32]
    assert found["cores"]["status"] == "warn"


def test_a_server_without_prefix_cache_and_with_a_key(start_server: Callable[..., Server]) -> None:
    os.environ["KVPROBE_TEST_DOCTOR_KEY"] = "sk-canary-41"
    try:
        server = start_server("--no-prefix-caching", "--api-key-env", "KVPROBE_TEST_DOCTOR_KEY")
        refused = kvprobe("doctor", server.url, "--no-self-test", "--json")
        assert refused.code == 99
        assert "--api-key-env" in checks(refused)["reachable"]["fix"]
        result = kvprobe(
            "doctor", server.url, "--no-self-test", "--json", "--api-key-env", "KVPROBE_TEST_DOCTOR_KEY"
        )
    finally:
        del os.environ["KVPROBE_TEST_DOCTOR_KEY"]
    assert checks(result)["prefix_cache"]["status"] == "warn"
    assert "took nothing" in checks(result)["prefix_cache"]["text"]
    assert "sk-canary-41" not in result.out + result.err


def test_nobody_there() -> None:
    result = kvprobe("doctor", "127.0.0.1:9", "--no-self-test", "--json")
    assert result.code == 99
    found = checks(result)
    assert found["reachable"]["status"] == "fail"
    assert found["stream"]["status"] == "skipped"


def test_a_stream_that_ends_without_an_end() -> None:
    """The model is listed by the kit's server only if the fault says so; here every path streams."""
    with serve(playing(chunk("a"), chunk("b"))) as server:
        result = kvprobe("doctor", server.url, "--no-self-test", "--json")
    assert result.code == 99
    assert checks(result)["reachable"]["status"] == "fail"


MODELS = answer(json.dumps({"data": [{"id": "m"}]}).encode())
OLD_ANSWER = data({"id": "x", "choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})


def by_path(pages: dict[bytes, bytes]) -> Fault:
    """A server that answers each path with its page, on one connection after the other."""

    async def play(exchange: Exchange) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                path = (await exchange.request()).split(b" ", 2)[1]
                await exchange.send(pages.get(path, answer(b"{}", status="404 Not Found")))

    return play


def streamed(*events: bytes) -> bytes:
    return answer(b"".join((*events, usage(prompt_tokens=9, completion_tokens=2), DONE)), "text/event-stream")


def test_a_base_model_without_a_chat_template_is_asked_for_completions() -> None:
    refusal = answer(b'{"error": {"message": "you must provide a chat template"}}', status="400 Bad Request")
    pages = {
        b"/v1/models": MODELS,
        b"/v1/chat/completions": refusal,
        b"/v1/completions": streamed(OLD_ANSWER),
    }
    with serve(by_path(pages)) as server:
        result = kvprobe("doctor", server.url, "--no-self-test", "--json")
    assert result.code == 0
    found = checks(result)["stream"]
    assert (found["status"], "chat template" in found["text"]) == ("warn", True)
    assert "endpoint=completions" in found["fix"]
    assert checks(result)["usage"]["status"] == "ok"


def test_of_several_models_one_has_to_be_named_and_the_target_was_reached() -> None:
    listed = answer(json.dumps({"data": [{"id": "base"}, {"id": "lora-\x1b[2J"}]}).encode())
    with serve(by_path({b"/v1/models": listed})) as server:
        result = kvprobe("doctor", server.url, "--no-self-test", "--json")
    found = checks(result)
    assert result.code == 99
    assert (found["reachable"]["status"], found["model"]["status"]) == ("ok", "fail")
    assert "--model" in found["model"]["fix"]


def test_an_answer_of_reasoning_alone_is_told() -> None:
    thought = chunk(reasoning_content="hm", finish="length")
    with serve(by_path({b"/v1/models": MODELS, b"/v1/chat/completions": streamed(thought)})) as server:
        found = checks(kvprobe("doctor", server.url, "--no-self-test", "--json"))
    assert (found["stream"]["status"], "reasoning" in found["stream"]["text"]) == ("ok", True)


def test_a_stream_that_hangs_in_the_middle_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_TIMEOUT_S", 0.5)

    async def hang(exchange: Exchange) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await exchange.request()
            await exchange.send(OK_HEAD, http_chunk(chunk("a")))
            await exchange.request()

    with serve(hang) as server, httpx.Client(trust_env=False) as client:
        told = asking.stream_one(client, server.url, "m", "x", 8)
    assert (told.chunks_with_text, told.error) == (1, "nothing came for 0.5 s")
    assert stream(told).status == "fail"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="install openssl for certificates")
def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    context = server_context(certificate(tmp_path, "IP:127.0.0.1"))
    with serve(playing(chunk("a"), chunk(finish="stop"), DONE), context) as server:
        url = server.url.replace("http:", "https:")
        found = checks(kvprobe("doctor", url, "--no-self-test", "--json"))
        open_eyed = checks(kvprobe("doctor", url, "--no-self-test", "--json", "--insecure"))
    assert found["tls"]["status"] == "fail"
    assert "--insecure" in found["tls"]["fix"]
    assert open_eyed["tls"]["status"] == "warn"


def test_too_few_descriptors_are_told_beforehand() -> None:
    """2,000 streams on a limit of 1,024: the number that is needed, before any load."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    argv = command("doctor", "--streams", "2000", "--json")
    done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=limited, timeout=60)
    assert done.returncode == 99
    found = {c["id"]: c for c in json.loads(done.stdout)["checks"]}
    assert found["descriptors"]["status"] == "fail"
    assert found["descriptors"]["fix"] == "ulimit -n 2064"
    assert found["client_headroom"]["status"] == "skipped"


def test_the_client_is_measured_against_a_server_that_is_never_late() -> None:
    """What it measures depends on the machine; that it measures does not."""
    result = kvprobe("doctor", "--streams", "4", "--json")
    found = {c["id"]: c for c in result.document["checks"]}["client_headroom"]
    assert found["status"] in ("ok", "warn", "fail")
    assert found["facts"]["true_ttft_s"] == 0.05
    assert found["facts"]["ttft_p50_s"] >= 0.05


def test_a_proxy_is_stated_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:canary-7@proxy.example:3128")
    found = machine.proxies("http://127.0.0.1:8000")
    assert found.status == "warn"
    assert "proxy.example" in found.text
    assert "canary-7" not in json.dumps([found.text, found.facts])


def test_a_folder_that_cannot_be_written() -> None:
    assert machine.disk(Path("/proc/nowhere")).status == "fail"


def test_mistakes_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--streams", "many"]) == 2
    assert main(["doctor", "--metrics", "http://127.0.0.1:1/metrics"]) == 2
    assert main(["doctor", "ftp://x"]) == 2
    assert "fix:" in capsys.readouterr().err


@given(st.integers(1, 512), st.lists(st.integers(600, 4_000), min_size=1, max_size=4, unique=True))
def test_the_true_unit_is_never_ruled_out(unit: int, lengths: list[int]) -> None:
    assert unit in possible_units((n, (n - 1) // unit * unit) for n in lengths)


def test_three_lengths_leave_one_unit() -> None:
    assert possible_units([(963, 960), (1_690, 1_680), (2_707, 2_704)]) == [16]
    assert possible_units([(963, 944), (1_690, 1_664), (2_707, 2_688)]) == []  # one unit less, as with MTP


def _units_found(unit: int, seed: int) -> tuple[int, ...]:
    """By the probe, from a server whose tokens are one and a half letters long."""
    seen: set[str] = set()

    def ask(text: str) -> asking.Answer:
        tokens = len(text) * 2 // 3 + 9
        cached = (tokens - 1) // unit * unit if text in seen else 0
        seen.add(text)
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        return asking.Answer(status=200, usage=msgspec.convert({"prompt_tokens": tokens, **details}, Usage))

    found = probe(ask, seed).units
    assert len(seen) <= 9
    return found


@pytest.mark.parametrize("unit", [16, 32, 64, 128, 256, 272, 544, 1056])
def test_further_prompts_leave_one_unit(unit: int) -> None:
    """Whatever the words come out as: three lengths alone leave 32 and 64 in one case of eight."""
    assert {_units_found(unit, seed) for seed in range(100)} == {(unit,)}


@given(st.integers(1, 1_000), st.integers(0, 2**32))
def test_the_true_unit_is_among_those_found(unit: int, seed: int) -> None:
    assert unit in _units_found(unit, seed)


def test_the_null_server_answers_as_a_server_does() -> None:
    import sys

    process = subprocess.Popen(
        [sys.executable, "-m", "kvprobe.doctor.null_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "null"
        assert httpx.get(f"{url}/metrics").status_code == 404
        answer = httpx.post(f"{url}/v1/chat/completions", json={}).text
        assert answer.count("word") == 64
        assert answer.endswith("data: [DONE]\n\n")
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
