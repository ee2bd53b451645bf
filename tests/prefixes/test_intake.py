"""Request logs as gateways really write them, and the ceilings of such a log against brute force."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli.main import main
from kvprobe.errors import UsageError
from kvprobe.load.token_view import split_pieces
from kvprobe.prefixes import intake
from kvprobe.prefixes.analyse import analyse, analysed
from kvprobe.prefixes.ceilings import Conditions
from kvprobe.prefixes.intake import read_request_log
from kvprobe.prefixes.rows import Sent, rows_of
from kvprobe.prefixes.sniff import is_request_log

SYSTEM = "You answer questions about ships and harbours, briefly. " * 30


def one_each(text: str) -> int:
    return len(split_pieces(text))


def chat(text: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def written(folder: Path, rows: Sequence[Any], end: str = "\n") -> str:
    path = folder / "requests.jsonl"
    text = end.join(row if isinstance(row, str) else json.dumps(row) for row in rows) + end
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return str(path)


def diagnosis(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["diagnose", *argv, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def steps(found: dict[str, Any]) -> dict[str, float]:
    return {s["name"]: s["hit_rate"] for s in found["facts"]["prefix_analysis"]["steps"]}


# -- brute force -------------------------------------------------------------------------------------


def brute_hit_rate(rows: Sequence[dict[str, Any]], block: int, *names: str) -> float:
    """Each prompt against every earlier one that agrees in `names`, word by word."""
    reused = total = 0
    for n, row in enumerate(rows):
        words, best = row["prompt"].split(" "), 0
        for past in rows[:n]:
            if all(past.get(name) == row.get(name) for name in names):
                common = 0
                for a, b in zip(words, past["prompt"].split(" "), strict=False):
                    if a != b:
                        break
                    common += 1
                best = max(best, common)
        total += len(words)
        reused += min(best // block, (len(words) - 1) // block) * block
    return reused / total


def brute_pool_rate(rows: Sequence[dict[str, Any]], block: int, pool_tokens: int, *names: str) -> float:
    """Least recently used out first, a list for each cache, searched from its start."""
    caches: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    reused = total = 0
    for row in rows:
        words = row["prompt"].split(" ")
        cache = caches.setdefault((row["model"], row["replica"]), [])
        starts = [
            (*(row[name] for name in names), *words[: (i + 1) * block]) for i in range(len(words) // block)
        ]
        hits = 0
        while hits < len(starts) and starts[hits] in cache:
            hits += 1
        for start in reversed(starts):
            if start in cache:
                cache.remove(start)
            cache.append(start)
        del cache[: max(0, len(cache) - pool_tokens // block)]
        total += len(words)
        reused += min(hits, (len(words) - 1) // block) * block
    return reused / total


def made_log(seed: int) -> list[dict[str, Any]]:
    """Families, some exact repeats, three models, two salts, two replicas."""
    rng = random.Random(seed)
    words = ("oak", "pond", "rose", "sail", "tar", "keel")
    heads = [[rng.choice(words) for _ in range(rng.randint(5, 40))] for _ in range(4)]
    rows: list[dict[str, Any]] = []
    for n in range(60):
        if rows and rng.random() < 0.15:
            prompt = rng.choice(rows)["prompt"]
        else:
            prompt = " ".join(rng.choice(heads) + [rng.choice(words) for _ in range(rng.randint(1, 12))])
        rows.append(
            {
                "prompt": prompt,
                "timestamp": 1_000.0 + n,
                "model": rng.choice("abc"),
                "cache_salt": rng.choice("xy"),
                "replica": rng.choice(("r1", "r2")),
            }
        )
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_ceilings_and_steps_are_those_of_brute_force(tmp_path: Path, seed: int) -> None:
    """From the file on, whose lines are in no order of time."""
    rows = made_log(seed)
    mixed = random.Random(seed).sample(rows, len(rows))
    log = read_request_log(written(tmp_path, mixed))
    assert [item.text for item in log.sent] == [row["prompt"] for row in rows]
    known = Conditions(block_tokens=4, pool_tokens=80)
    found = analyse(log.sent, known, tokens_of=one_each, with_layout=False)
    for ceiling in found.ceilings:
        if ceiling.what == "block_tokens":
            assert ceiling.hit_rate == pytest.approx(brute_hit_rate(rows, ceiling.value, "model"))
    by_name = {s.name: s.hit_rate for s in found.steps}
    everything = ("model", "cache_salt", "replica")
    assert by_name["last_token"] == pytest.approx(brute_hit_rate(rows, 1, "model"))
    assert by_name["block"] == pytest.approx(brute_hit_rate(rows, 4, "model"))
    assert by_name["request_option"] == pytest.approx(brute_hit_rate(rows, 4, "model", "cache_salt"))
    assert by_name["routing"] == pytest.approx(brute_hit_rate(rows, 4, *everything))
    assert by_name["pool"] == pytest.approx(brute_pool_rate(rows, 4, 40, "cache_salt"))


# -- models ------------------------------------------------------------------------------------------


def test_the_same_text_is_nothing_in_common_for_two_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no option of the request: a log of many models must not blame a salt."""
    rows = [chat(f"{SYSTEM} {n}", model=f"model-{n}") for n in range(40)]
    found = diagnosis(capsys, written(tmp_path, rows))
    assert found["primary"] == "healthy_baseline"
    assert steps(found)["shared"] == 0.0
    assert found["facts"]["prefix_analysis"]["tree"] == []
    assert "40 models" in next(o["text"] for o in found["observations"] if o["id"] == "models_apart")
    three = [chat(f"{SYSTEM} {n}", model=f"model-{n % 3}") for n in range(60)]
    found = diagnosis(capsys, written(tmp_path, three))
    assert [node["prompts"] for node in found["facts"]["prefix_analysis"]["tree"]] == [20, 20, 20]


# -- shapes ------------------------------------------------------------------------------------------

RESPONSES: list[Any] = [
    lambda n: {"model": "m", "instructions": SYSTEM, "input": f"question {n}"},
    lambda n: {"input": [{"role": "user", "content": [{"type": "input_text", "text": f"{SYSTEM} {n}"}]}]},
    lambda n: {
        "model": "m",
        "instructions": SYSTEM,
        "input": [
            {"role": "user", "content": "weather?"},
            {"type": "function_call", "id": f"fc{n}", "name": "w", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": f"rain {n}"},
        ],
    },
]  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [
        *RESPONSES,
        lambda n: {"model": "m", "prompt": [f"{SYSTEM} {n}"]},
        lambda n: {"request": json.dumps(chat(f"{SYSTEM} {n}")), "response": "none"},
        lambda n: {"input": chat(f"{SYSTEM} {n}"), "output": "x"},
        lambda n: chat(f"{SYSTEM} {n}", prompt=None),
        lambda n: chat(SYSTEM + "\ud800" + str(n)),
        lambda n: {"messages": [{"role": None, "content": SYSTEM}, {"role": "tool", "content": str(n)}]},
        lambda n: {"messages": [{"role": "assistant", "content": None, "tool_calls": [SYSTEM, n]}]},
    ],
)
def test_further_shapes(shape: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosis(capsys, written(tmp_path, [shape(n) for n in range(30)]))
    assert found["read"]["requests"] == 30
    assert steps(found)["shared"] > 0.8


def test_usage_of_a_response_is_read(tmp_path: Path) -> None:
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 1}
    row = {"request": RESPONSES[0](1), "response": {"body": {"usage": usage}}}
    (sent,) = read_request_log(written(tmp_path, [row])).sent
    assert (sent.tokens, sent.cached) == (100, 64)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": [1, 2, 3]}, "of token ids"),
        ({"prompt": [[1], [2]]}, "of token ids"),
        ({"prompt": ["a", "b"]}, "of several prompts"),
        ({"input": "x", "instructions": "y", "previous_response_id": "r"}, "that go on from an answer"),
        ({"messages": "hello"}, "without a prompt"),
        ({"messages": [7]}, "without a prompt"),
        ({"input": "embed me", "model": "e"}, "without a prompt"),
        ({"url": "/v1/images"}, "without a prompt"),
        ("[" * 100_000, "not JSON"),
        ("x" * (16 << 20) + "xx", "far too long"),
    ],
)
def test_what_is_left_out_is_told(tmp_path: Path, row: Any, why: str) -> None:
    log = read_request_log(written(tmp_path, [chat("a b c"), row]))
    assert (log.requests, sum(log.skipped.values())) == (1, 1)
    assert next(iter(log.skipped)).startswith(why)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}},
        {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2**39}},
        {"prompt_tokens": 2**39, "prompt_tokens_details": {"cached_tokens": 3}},
        {"prompt_tokens": -5, "prompt_tokens_details": [7]},
        {"prompt_tokens": "9", "prompt_tokens_details": {"cached_tokens": None}},
        {"prompt_tokens": 1e300, "cached_tokens": True},
    ],
)
def test_usage_that_cannot_be_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], usage: dict[str, Any]
) -> None:
    rows = [{"request": chat(f"{SYSTEM} {n}"), "response": {"usage": usage}} for n in range(30)]
    found = diagnosis(capsys, written(tmp_path, rows))
    got = found["facts"]["prefix_analysis"]["got"]
    assert got is None or 0.0 <= got <= 1.0
    assert main(["diagnose", str(tmp_path / "requests.jsonl")]) == 0


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\n\n" + data.rstrip(b"\n"),
        lambda data: data[200:],  # rotated in the middle of a line
        lambda data: b'{"version": 1}\n' + data,
        lambda data: data.replace(b"\n", b'\n{"response": {"id": "x"}}\n'),
        gzip.compress,
        lambda data: gzip.compress(data)[:-40],
        lambda data: data.decode().encode("utf-16"),
    ],
)
def test_files_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any) -> None:
    path = Path(written(tmp_path, [chat(f"{SYSTEM} {n}") for n in range(30)]))
    path.write_bytes(change(path.read_bytes()))
    found = diagnosis(capsys, str(path))
    assert found["read"]["requests"] >= 25
    assert steps(found)["shared"] > 0.9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "INFO 03-01 engine started\n" * 20,
        '{"level": "info", "msg": "hello"}\n' * 20 + '{"prompt": "x"}\n',
        "{" * 2_000_000,
        "\x00" * 1_000,
        '{"model": "e", "input": "embed me"}\n' * 9,
    ],
)
def test_what_is_no_request_log(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    assert not is_request_log(str(path))
    assert not is_request_log(str(tmp_path))
    assert not is_request_log(str(tmp_path / "none"))


def test_times_of_several_units_are_one_clock(tmp_path: Path) -> None:
    rows = [
        {**chat(str(n)), "ts": int((1.7e9 + n) * unit)} for n, unit in enumerate((1, 1e3, 1e6, 1e9, 1, 1e3))
    ]
    log = read_request_log(written(tmp_path, rows[::-1]))
    assert log.timed
    assert [s.text.split("\n")[1] for s in log.sent] == [str(n) for n in range(6)]


def test_a_log_larger_than_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in time are looked at, wherever in the file they stand; all are counted."""
    monkeypatch.setattr(intake, "MAX_PROMPTS", 10)
    rows = [{**chat(f"text {n}"), "time": float(n)} for n in range(200)]
    log = read_request_log(written(tmp_path, rows[::-1]))
    assert (log.requests, log.lines) == (200, 200)
    assert [s.text.split("\n")[1] for s in log.sent] == [f"text {n}" for n in range(10)]
    monkeypatch.setattr(intake, "MAX_KEPT_CHARS", 60)
    log = read_request_log(written(tmp_path, [chat(f"text {n}") for n in range(200)]))
    assert (log.requests, len(log.sent), log.timed) == (200, 4, False)
    monkeypatch.setattr(intake, "MAX_KEPT_CHARS", 3)
    assert len(read_request_log(written(tmp_path, [chat("a long text")] * 5)).sent) == 1


def test_a_prompt_beyond_all_bounds_is_counted_and_not_analysed() -> None:
    sent = [Sent(text="oak " * 100), Sent(text="oak pond")]
    rows = rows_of(sent, one_each, 0, estimated=False, max_stand_ins=50)
    found = analysed(rows, Conditions(block_tokens=4, pool_tokens=9, replicas=2), "the tokenizer", 7)
    assert (found.prompts, found.analysed, found.prompt_tokens) == (9, 0, 0)
    assert found.reachable == 0.0
    assert found.pool_needed_tokens is None


def test_a_file_without_a_request_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 of token ids"):
        read_request_log(written(tmp_path, [{"prompt": [1]}, {"prompt": [2]}]))


def test_a_page_of_hostile_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b]52;c;eA==\x07\x1b[2J</script><img src=x onerror=alert(1)>\u202e"
    rows = [
        {"messages": [{"role": bad, "content": SYSTEM + bad + str(n)}], "model": bad + str(n % 2), "pod": bad}
        for n in range(30)
    ]
    assert main(["diagnose", written(tmp_path, rows)]) == 0
    page = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & set(page)
