"""Each ailment is a real defect, and none of them says so."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from reference_server.ailments import NAMES
from reference_server.answer import Answer, AnswerForm
from reference_server.config import ServerConfig
from reference_server.device import OutOfDeviceMemory
from reference_server.errors import ConfigError
from reference_server.sequence import FinishReason, Sequence
from reference_server.sick import (
    ERROR_EVERY,
    LEAKED_BYTES,
    LONELY_TOKENS,
    TOKENS_BEFORE_ERROR,
    SickCore,
    answer_kind,
)
from reference_server.streams import TokenEvent, TokenStream
from tests.reference_server.log_lines import undocumented
from tests.reference_server.server_process import ServerProcess
from tests.reference_server.server_rig import Rig
from tests.reference_server.test_core import words
from tests.reference_server.test_http import CHAT, chat

MIB = 1024**2


def ill(*names: str, **options: Any) -> Rig:
    return Rig(ailments=names, **options)


def on_device(*names: str, total: int = 8 * MIB, **options: Any) -> Rig:
    return ill(*names, device_memory_bytes=total, pool_from_device=True, **options)


@pytest.fixture(autouse=True)
def _only_documented_lines(caplog: pytest.LogCaptureFixture) -> Any:
    """What an ill server logs is what the page lists, which knows of no ailment."""
    caplog.set_level("DEBUG")
    yield
    messages = [r.getMessage() for r in caplog.records if r.name.startswith("reference_server")]
    assert undocumented(messages) == []
    told = [name for name in NAMES for message in messages if name in message or "ailment" in message]
    assert told == []


def test_a_hogged_workspace_leaves_little(caplog: pytest.LogCaptureFixture) -> None:
    healthy, hog = on_device(), on_device("workspace-hog")
    assert hog.core.allocator.capacity_tokens < healthy.core.allocator.capacity_tokens / 4
    assert hog.core.state.device is not None
    assert hog.core.state.device.own > 6 * MIB, "it is really held"
    assert len(hog.generate([words(1, 40)], 5)[0]) == 5


def test_weights_that_are_too_large_end_the_start() -> None:
    with pytest.raises(ConfigError, match="no memory is left for KV") as failed:
        on_device("weights-too-large")
    assert undocumented([str(failed.value)]) == []


def test_a_startup_peak_ends_the_start_in_the_profile() -> None:
    with pytest.raises(ConfigError, match="phase profile") as failed:
        on_device("startup-peak")
    assert undocumented([str(failed.value)]) == []


def test_a_small_pool_is_one_long_conversation() -> None:
    rig = ill("small-pool", blocks=2000)
    assert rig.core.allocator.capacity_tokens == 2048


def test_reserving_the_context_holds_it_from_the_start() -> None:
    rig = ill("reserve-max", blocks=400)
    rig.add(words(1, 20), 5)
    rig.step()
    usage = rig.core.state.usage
    assert usage.blocks_used == 128
    assert usage.reserved_slots > 1900
    for seed in range(4):
        rig.add(words(seed, 20), 5)
    rig.step()
    assert rig.core.state.running == 3, "400 blocks hold no more, though 60 tokens are stored"
    rig.drain()


def test_fragmented_memory_refuses_with_bytes_free(caplog: pytest.LogCaptureFixture) -> None:
    rig = ill("fragmented", max_model_len=256, blocks=200, max_num_batched_tokens=256)
    rng = random.Random(1)
    sequences = [rig.add(words(seed, rng.randint(5, 200)), rng.randint(1, 50)) for seed in range(60)]
    rig.drain()
    usage = rig.core.state.usage
    assert usage.blocks_free == usage.blocks_total
    assert usage.largest_free_blocks < usage.blocks_free
    assert usage.fragmented_failures_total > 0
    assert FinishReason.ERROR in {sequence.finished for sequence in sequences}
    healthy = Rig(allocator="contiguous-exact", blocks=64)
    healthy.generate([words(seed, 100) for seed in range(20)], 10)
    assert healthy.core.state.usage.largest_free_blocks == healthy.core.state.usage.blocks_total


@pytest.mark.parametrize(
    ("name", "cached"), [("no-reuse", 0), ("salted", 0), ("coarse-blocks", 0), (None, 160)]
)
def test_prefixes_that_are_not_reused(name: str | None, cached: int) -> None:
    rig = ill(name, blocks=200) if name else Rig(blocks=200)
    texts = []
    for _ in range(2):
        sequence = rig.add(words(1, 160), 3)
        rig.drain()
        texts.append(rig.text(sequence))
    assert sequence.cached_tokens == cached
    assert texts[0] == texts[1]


def test_early_eviction_drops_what_was_just_let_go() -> None:
    rig = ill("evict-early", blocks=200)
    for seed in (1, 2, 1):
        sequence = rig.add(words(seed, 160), 3)
        rig.drain()
    assert sequence.cached_tokens == 0
    usage = rig.core.state.usage
    assert usage.blocks_evicted_total > 0
    assert usage.blocks_free > 150, "and there was room"
    Rig(blocks=200).generate([words(1, 160)])


def test_bad_scales_keep_the_capacity_and_spoil_the_text() -> None:
    healthy, bad = Rig(kv_dtype="int8"), ill("bad-kv-scales", kv_dtype="int8")
    assert bad.core.state.bytes_per_token == healthy.core.state.bytes_per_token
    prompts = [words(seed, 60) for seed in range(4)]
    assert bad.generate(prompts, 20) != healthy.generate(prompts, 20)


def test_slow_prefill_computes_twice_and_says_the_same() -> None:
    healthy, slow = Rig(), ill("slow-prefill")
    ran: list[int] = []
    inner = slow.core.runner._runner
    run = inner.run
    inner.run = lambda work: ran.append(sum(item.count for item in work)) or run(work)  # type: ignore[func-returns-value]
    assert slow.generate([words(1, 100)], 4) == healthy.generate([words(1, 100)], 4)
    assert ran == [100, 101, 1, 1, 1]


def test_a_queue_limit_leaves_blocks_free() -> None:
    rig = ill("queue-limit")
    for seed in range(5):
        rig.add(words(seed, 20), 5)
    rig.step()
    state = rig.core.state
    assert (state.running, state.waiting) == (2, 3)
    assert state.usage.ratio < 0.2
    rig.drain()


def test_a_leak_on_abort_keeps_blocks_for_ever() -> None:
    rig = ill("leak-on-abort")
    finished, aborted = rig.add(words(1, 60), 5), rig.add(words(2, 60), 50)
    rig.step()
    rig.core.abort(aborted.request_id)
    rig.drain()
    assert finished.finished is FinishReason.LENGTH
    state = rig.core.state
    assert (state.running, state.waiting) == (0, 0)
    assert state.usage.blocks_used == 4
    rig.core.check()


def test_a_cancel_that_is_ignored_runs_to_its_end() -> None:
    rig = ill("ignore-cancel")
    sequence = rig.add(words(2, 60), 30)
    rig.step()
    rig.core.abort(sequence.request_id)
    assert rig.core.state.running == 1
    rig.drain()
    assert sequence.num_output_tokens == 30


def test_a_host_leak_grows_with_each_request() -> None:
    rig = ill("host-leak")
    rig.generate([words(seed, 20) for seed in range(3)], 1)
    core = rig.core
    assert isinstance(core, SickCore)
    assert sum(map(len, core._kept_for_ever)) == 3 * LEAKED_BYTES


def test_a_noisy_neighbour_takes_what_is_free() -> None:
    rig = on_device("noisy-neighbour")
    rig.add(words(1, 60), LONELY_TOKENS + 10)
    with pytest.raises(OutOfDeviceMemory, match="phase") as failed:
        rig.drain()
    assert rig.value("device_memory_free_bytes") == 0
    others = rig.value("device_memory_total_bytes") - rig.value("device_memory_own_bytes")
    assert f"by others {others:.0f} B" in str(failed.value)
    assert others > 0
    # The engine logs it with a traceback, and a healthy server's has no such file in it.
    files = {Path(frame.filename).stem for frame in traceback.extract_tb(failed.tb)}
    assert "core" in files
    assert not files & {"sick", "ailments", "neighbour"}


async def _sent(ailment: str, events: list[TokenEvent], *, streamed: bool = True) -> bytes:
    """The bytes of a chat's answer, its events being there already."""
    rig = Rig()
    sequence = rig.add("x", 5)
    stream = TokenStream(sequence.request_id, 100, lambda _: None)
    sent: list[MutableMapping[str, Any]] = []
    waiting = asyncio.Event()

    class Quiet:
        def submit(self, sequence: Sequence, stream: TokenStream) -> None: ...

        def abort(self, request_id: str) -> None: ...

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    form = AnswerForm("small", chat=True, streamed=streamed, include_usage=False)
    engine: Any = Quiet()
    answer = answer_kind([ailment])(engine, sequence, stream, form, write_seconds=5)
    task = asyncio.create_task(answer({"type": "http"}, receive, send))
    if ailment == "early-role-chunk":
        while len(sent) < 2:
            await asyncio.sleep(0)
        assert b'"role":"assistant"' in sent[1]["body"], "the role is out, and nothing was computed"
    else:
        for _ in range(5):
            await asyncio.sleep(0)
        assert sent == [], "a healthy stream starts with its first token"
    waiting.set()
    for event in events:
        stream.put(event)
    await task
    return b"".join(message.get("body", b"") for message in sent)


def _tokens(count: int) -> list[TokenEvent]:
    return [
        TokenEvent(65, "A", finished=FinishReason.LENGTH if i == count - 1 else None) for i in range(count)
    ]


def test_an_early_role_comes_before_any_work() -> None:
    body = asyncio.run(_sent("early-role-chunk", _tokens(3)))
    assert body.count(b'"role":"assistant"') == 1
    assert body.count(b'"content":"A"') == 3
    assert b'"finish_reason":"length"' in body


def test_one_stream_in_a_few_breaks_inside_its_200() -> None:
    bodies = [asyncio.run(_sent("error-in-stream", _tokens(8))) for _ in range(2 * ERROR_EVERY)]
    broken = [body for body in bodies if b'"error"' in body]
    assert len(broken) == 2
    for body in broken:
        assert body.count(b'"content":"A"') == TOKENS_BEFORE_ERROR
        assert b'"finish_reason":"' not in body
        assert body.endswith(b"data: [DONE]\n\n")
    assert answer_kind([]) is Answer


def test_a_silent_death_leaves_a_log_that_just_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess("--ailment", "die-silently", "--kv-memory", "32MiB") as server:
        connection = server.post_raw(CHAT, chat("x", max_tokens=3000, stream=True))
        with connection:
            assert server.process.wait(120) == -9
        messages = [line.split(": ", 1)[1] for line in server.log().splitlines()]
        assert undocumented(messages) == []
        assert not any("stopping" in message for message in messages)


def test_every_name_is_taught_and_none_is_left_out() -> None:
    taught = Path(__file__).read_text()
    assert [name for name in NAMES if f'"{name}"' not in taught] == []


@pytest.mark.parametrize("pair", [("reserve-max", "fragmented"), ("fragmented", "evict-early")])
def test_ailments_that_exclude_each_other_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="--ailment"):
        ill(*pair)


def test_several_at_once() -> None:
    rig = ill("queue-limit", "salted", "slow-prefill", "leak-on-abort")
    assert len(rig.generate([words(seed, 40) for seed in range(3)], 5)) == 3
    assert ServerConfig().ailments == ()
