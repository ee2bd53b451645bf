"""The API of a real server process over real sockets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.reference_server.server_process import ServerProcess, events_of, until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def chat(content: str = "hello", **extra: Any) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 6,
        "temperature": 0,
        "ignore_eos": True,
    }
    return {**body, **extra}


def completion(prompt: object = "hello", **extra: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    return {**body, **extra}


def test_a_chat_stream_has_the_form_of_openai(client: httpx.Client) -> None:
    reply = client.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, *tokens, usage = events_of(reply.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [len(t["choices"][0]["delta"]["content"]) for t in tokens] == [1] * 6
    assert [t["choices"][0]["finish_reason"] for t in tokens] == [None] * 5 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert usage["usage"]["prompt_tokens"] == 9
    assert {t["id"] for t in (first, *tokens, usage)} == {reply.headers["x-request-id"]}
    assert first["object"] == "chat.completion.chunk"


def test_the_role_comes_with_the_first_token_in_one_piece(server: ServerProcess) -> None:
    with httpx.stream("POST", server.url + CHAT, json=chat(stream=True)) as reply:
        piece = next(reply.iter_raw())
    assert piece.count(b"data: ") >= 2


def test_stream_and_whole_answers_agree(client: httpx.Client) -> None:
    for path, body in ((CHAT, chat("abc")), (COMPLETIONS, completion("abc"))):
        whole = client.post(path, json=body).json()
        chunks = events_of(client.post(path, json={**body, "stream": True}).text)
        if path == CHAT:
            text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
            assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}
        else:
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            assert whole["choices"][0]["text"] == text
        assert len(text) == 6
        assert whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + 6


def test_usage_shows_cached_tokens(client: httpx.Client) -> None:
    text = "a prefix that is long enough to fill blocks " * 5
    cached = []
    for _ in range(2):
        usage = client.post(COMPLETIONS, json=completion(text)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, (len(text) + 1) // 16 * 16]


def test_max_completion_tokens_wins_and_text_parts_are_joined(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "abc"}, {"type": "text", "text": "def"}]
    body = chat(max_completion_tokens=3)
    body["messages"] = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    usage = client.post(CHAT, json=body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1 + 3 + 9 + 1, 3)


def test_sampling_repeats_with_its_seed(client: httpx.Client) -> None:
    def text(**extra: Any) -> str:
        body = completion("sample", max_tokens=24, temperature=1.0, **extra)
        return str(client.post(COMPLETIONS, json=body).json()["choices"][0]["text"])

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text(seed=5, top_p=1e-9) == text(seed=6, top_p=1e-9), "the smallest top_p leaves one token"


def test_stop_strings(client: httpx.Client) -> None:
    whole = client.post(COMPLETIONS, json=completion("stop", max_tokens=20)).json()["choices"][0]["text"]
    choice = client.post(COMPLETIONS, json=completion("stop", max_tokens=20, stop=whole[5:7])).json()[
        "choices"
    ][0]
    assert choice["text"] == whole[: whole.index(whole[5:7])]
    assert choice["finish_reason"] == "stop"


def test_tokenize_sizes_prompts_exactly(client: httpx.Client) -> None:
    plain = client.post("/tokenize", json={"model": "tiny", "prompt": "héllo"}).json()
    assert plain["count"] == len(plain["tokens"]) == 1 + 6
    assert plain["max_model_len"] == 4096
    assert client.post("/detokenize", json={"model": "tiny", "tokens": plain["tokens"][1:]}).json() == {
        "prompt": "héllo"
    }
    messages = [{"role": "user", "content": "hello"}]
    asked = client.post("/tokenize", json={"model": "tiny", "messages": messages}).json()
    got = client.post(CHAT, json=chat("hello")).json()["usage"]["prompt_tokens"]
    assert asked["count"] == got
    by_ids = client.post(COMPLETIONS, json=completion(asked["tokens"])).json()
    assert (
        by_ids["choices"][0]["text"]
        == client.post(CHAT, json=chat()).json()["choices"][0]["message"]["content"]
    )


def test_models_health_version(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 4096)
    assert client.get("/health").status_code == 200
    assert client.get("/version").json()["version"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, chat(model="nope"), 404, "model"),
        (CHAT, chat(n=2), 400, "n"),
        (CHAT, chat(max_tokens=0), 400, "max_tokens"),
        (CHAT, chat(max_tokens="6"), 400, "max_tokens"),
        (CHAT, chat(temperature=-1), 400, "temperature"),
        (CHAT, chat(top_p=0), 400, "top_p"),
        (CHAT, chat(messages=[]), 400, "messages"),
        (CHAT, chat(messages=[{"role": "wizard", "content": "x"}]), 400, "messages"),
        (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "messages"),
        (CHAT, chat(prompt_logprobs=1), 400, "prompt_logprobs"),
        (CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
        (CHAT, {"model": "tiny"}, 400, None),
        (CHAT, chat("x" * 4096), 400, "input_tokens"),
        (CHAT, chat("x" * 4096, stream=True), 400, "input_tokens"),
        (CHAT, chat(max_tokens=5000), 400, "max_tokens"),
        (COMPLETIONS, completion([]), 400, "prompt"),
        (COMPLETIONS, completion(["a", "b"]), 400, "prompt"),
        (COMPLETIONS, completion([1, 9999]), 400, "prompt"),
        (COMPLETIONS, completion(echo=True), 400, "echo"),
        ("/tokenize", {"model": "tiny"}, 400, "prompt"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/nowhere", {}, 404, None),
        ("/health", {}, 405, None),
    ],
)
def test_refusals_are_openai_errors(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    reply = client.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, status)
    assert error["param"] == param
    assert error["message"]
    assert error["type"].endswith("Error")
    assert "Traceback" not in reply.text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
        (b'{"max_tokens": NaN, "messages": []}', 400),
        (b'{"max_tokens": 1e400, "messages": [{"role": "user", "content": "x"}]}', 400),
        (b'{"max_tokens": ' + b"9" * 5000 + b', "messages": [{"role": "user", "content": "x"}]}', 400),
        (b'{"model": "tiny", "messages": ' + b"[" * 100_000, 400),
        (b'{"a":' * 100_000, 400),
        (b"x" * (1024**2 + 1), 413),
    ],
)
def test_hostile_bodies(server: ServerProcess, content: bytes, status: int) -> None:
    reply = httpx.post(server.url + CHAT, content=content)
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == status


def test_too_many_headers_get_431(server: ServerProcess) -> None:
    for headers in ({f"x-{i}": "1" for i in range(120)}, {"x-long": "y" * 40_000}):
        reply = httpx.get(server.url + "/health", headers=headers)
        assert reply.status_code == 431


def test_brackets_inside_text_are_no_nesting(client: httpx.Client) -> None:
    assert client.post(CHAT, json=chat('[{"' * 200)).status_code == 200


def test_concurrent_requests_get_the_texts_they_get_alone(client: httpx.Client) -> None:
    bodies = [completion(f"prompt number {i} " * (i + 1), max_tokens=12) for i in range(12)]

    def text(body: dict[str, Any]) -> str:
        return str(client.post(COMPLETIONS, json=body).json()["choices"][0]["text"])

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(text, bodies))
    assert together == [text(body) for body in bodies]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(server: ServerProcess, stream: bool) -> None:
    before = server.metric("generation_tokens_total")
    connection = server.post_raw(CHAT, chat("x" * 500, max_tokens=3000, stream=stream))
    until(lambda: server.metric("generation_tokens_total") > before)
    assert server.metric("kv_blocks_used") > 0
    connection.close()
    until(lambda: server.metric("num_requests_running") == 0)
    assert server.metric("kv_blocks_used") == 0
    assert server.metric("kv_blocks_free") + server.metric("kv_blocks_cached") == server.metric(
        "kv_blocks_total"
    )
    assert server.metric("generation_tokens_total") - before < 3000, "it did not run to its end"


def test_a_client_that_does_not_read_stops_nobody(server: ServerProcess, client: httpx.Client) -> None:
    idle = server.post_raw(CHAT, chat("slow", max_tokens=2000, stream=True))
    try:
        assert client.post(CHAT, json=chat("quick")).status_code == 200
    finally:
        idle.close()
    until(lambda: server.metric("num_requests_running") == 0)


def test_metrics_page_parses_and_adds_up(server: ServerProcess, client: httpx.Client) -> None:
    def samples() -> dict[str, float]:
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(client.get("/metrics").text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0) + sample.value
        return found

    before = samples()
    client.post(CHAT, json=chat("count me", max_tokens=9))
    after = samples()

    def grown(name: str) -> float:
        return after["kvprobe:" + name] - before["kvprobe:" + name]

    assert grown("generation_tokens_total") == 9
    assert grown("prompt_tokens_total") == 12
    assert grown("prefix_cache_queries_total") == 12
    assert grown("request_success_total") == 1
    assert grown("inter_token_latency_seconds_count") == 8
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert grown(name + "_seconds_count") == 1
    assert grown("request_decode_time_seconds_sum") == pytest.approx(grown("inter_token_latency_seconds_sum"))
    assert after["kvprobe:cache_config_info"] == 1
    assert after["kvprobe:build_info"] == 1
    assert after["kvprobe:num_requests_running"] == 0
    assert after["kvprobe:num_requests_running_max"] >= 1
    assert 0 < after["kvprobe:kv_cache_usage_max"] <= 1
    assert not [name for name in after if name.startswith("vllm:")]
