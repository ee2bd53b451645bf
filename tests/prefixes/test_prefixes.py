"""The tree, the caches and the steps against brute force; then the situations that users report."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.cli.main import main
from kvprobe.load.token_view import InfinitePrefixCache, TokenView, split_pieces
from kvprobe.prefixes import ceilings
from kvprobe.prefixes.analyse import analyse
from kvprobe.prefixes.caches import LruCache, chain
from kvprobe.prefixes.ceilings import Conditions, hit_rate
from kvprobe.prefixes.rows import Rows, Sent, rows_of
from kvprobe.prefixes.tree import MIN_TOKENS, prefix_tree

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


def one_each(text: str) -> int:
    """A token for every piece."""
    return len(split_pieces(text))


def made(rows: list[list[int]]) -> Rows:
    """Rows of given tokens."""
    sent = [Sent(text=" ".join(map(str, row))) for row in rows]
    return Rows(sent, [array("q", row) for row in rows], 1.0, TokenView(one_each), 0)


small_rows = st.lists(st.lists(st.integers(0, 2), max_size=30), min_size=1, max_size=12)


@given(small_rows, st.integers(1, 6))
def test_an_endless_cache_is_the_endless_cache(rows: list[list[int]], block: int) -> None:
    cache = InfinitePrefixCache(block)
    reused = sum(cache.admit(array("q", row)) for row in rows)
    total = sum(map(len, rows))
    assert hit_rate(made(rows), block) == pytest.approx(reused / total if total else 0.0)


@given(small_rows, st.integers(1, 4), st.integers(1, 12))
def test_a_bounded_cache_drops_the_least_recently_used(
    rows: list[list[int]], block: int, capacity: int
) -> None:
    """Against a list that is searched from its end."""
    cache, kept = LruCache(capacity), list[bytes]()
    for row in rows:
        digests = chain(array("q", row), block)
        usable = max(len(row) - 1, 0) // block
        hits = next((n for n, d in enumerate(digests) if d not in kept), len(digests))
        for digest in reversed(digests):
            if digest in kept:
                kept.remove(digest)
            kept.append(digest)
        kept = kept[-capacity:]
        assert cache.admit(digests, usable) == min(hits, usable)


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 1), max_size=8), min_size=2, max_size=10))
def test_the_tree_has_every_shared_start(tails: list[list[int]]) -> None:
    """All prompts begin with 20 equal tokens; brute force counts who shares which longer start."""
    head = [7] * 20
    rows = [head + tail for tail in tails]
    nodes = prefix_tree(made(rows))
    expected: dict[tuple[int, ...], int] = {}
    for a in rows:
        for b in rows:
            if a is not b:
                common = next(
                    (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
                )
                start = tuple(a[:common])
                expected[start] = sum(1 for r in rows if tuple(r[:common]) == start)
    wanted = sorted((len(start), count) for start, count in expected.items() if len(start) >= MIN_TOKENS)
    assert sorted((n.tokens, n.prompts) for n in nodes) == wanted
    for node in nodes:
        if node.parent is not None:
            assert nodes[node.parent].tokens < node.tokens
            assert nodes[node.parent].prompts >= node.prompts


def test_the_tree_shows_where_families_part() -> None:
    system = "You answer questions about ships. " + " ".join(WORDS * 5)
    sent = [Sent(text=f"{system} Question {i}: what of it?") for i in range(6)]
    sent += [Sent(text=f"Another system prompt: {' '.join(WORDS * 4)} item {i}") for i in range(3)]
    tree = prefix_tree(rows_of(sent, one_each, 0, estimated=False))
    roots = [n for n in tree if n.parent is None]
    assert {n.prompts for n in roots} == {6, 3}
    ships = next(n for n in roots if n.prompts == 6)
    assert ships.before.endswith("Question")
    assert ships.after[0].startswith(" 0:")
    assert ships.saved_tokens == 5 * ships.tokens


def texts(count: int, shared: int, own: int, seed: int = 1) -> list[str]:
    """Prompts of `shared` words in common and `own` words each of their own."""
    rng = random.Random(seed)
    head = " ".join(rng.choice(WORDS) for _ in range(shared))
    return [f"{head} {i} " + " ".join(rng.choice(WORDS) for _ in range(own)) for i in range(count)]


def test_steps_fall_and_each_says_what_it_takes() -> None:
    """S26: 240 shared tokens under blocks of 784 give no hit, and that is right."""
    found = analyse(
        [Sent(text=t) for t in texts(30, 240, 600)], Conditions(block_tokens=784), tokens_of=one_each
    )
    by_name = {s.name: s for s in found.steps}
    assert by_name["shared"].hit_rate == pytest.approx(240 / 841, abs=0.02)
    assert by_name["block"].hit_rate == 0.0
    assert by_name["block"].cause == "prefix_block_granularity"


@given(small_rows, st.integers(1, 6), st.integers(1, 3))
def test_one_pass_answers_for_every_block_key_and_replica(
    rows: list[list[int]], block: int, replicas: int
) -> None:
    """Against caches that hash each block, one for each replica and key."""
    sent = [
        Sent(text=str(n), key=(str(n % 2),), bypass="prompt_logprobs" if n % 5 == 4 else None)
        for n in range(len(rows))
    ]
    packed = [array("q", row) for row in rows]
    caches: dict[tuple[int, int], LruCache] = {}
    reused = 0
    for n, row in enumerate(packed):
        if sent[n].bypass is None:
            cache = caches.setdefault((n % replicas, n % 2), LruCache(None))
            reused += block * cache.admit(chain(row, block), max(len(row) - 1, 0) // block)
    total = sum(map(len, rows))
    got = hit_rate(Rows(sent, packed, 1.0, TokenView(one_each), 0), block, keyed=True, replicas=replicas)
    assert got == pytest.approx(reused / total if total else 0.0)


def test_sharing_below_the_unit_is_told_from_no_sharing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S27: blocks of 2,096 tokens. Some 1,500 shared tokens cannot hit; those that share nothing need not."""
    below = [logged(t, i, cached=0) for i, t in enumerate(texts(30, 1_000, 700))]
    found = diagnosis(capsys, written(tmp_path / "a.jsonl", below), "--block-size", "2096")
    assert found["primary"] == "prefix_block_granularity"
    assert "2,096" in found["findings"][0]["why"]
    apart = [logged(f"{i} " + texts(1, 0, 900, seed=i)[0], i, cached=0) for i in range(30)]
    found = diagnosis(capsys, written(tmp_path / "b.jsonl", apart), "--block-size", "2096")
    assert found["primary"] == "healthy_baseline"


def test_rounds_of_the_same_prompts_are_weighed_by_tokens() -> None:
    """S29: three rounds. The rate is of tokens, not of requests, and the last token is always computed."""
    prompts = [texts(1, 0, 100 * (n + 1), seed=n)[0] for n in range(10)]
    sent = []
    for turn in range(3):
        for text in prompts:
            size = one_each(text)
            sent.append(Sent(text=text, tokens=size, cached=(size - 1) // 16 * 16 if turn else 0))
    found = analyse(sent, Conditions(block_tokens=16), tokens_of=one_each)
    by_name = {s.name: s for s in found.steps}
    assert by_name["shared"].hit_rate == pytest.approx(2 / 3, abs=0.01)
    assert by_name["last_token"].lost == pytest.approx(20 / found.prompt_tokens, rel=0.1)
    assert found.got == pytest.approx(found.reachable, abs=0.01)
    assert found.reachable < 2 / 3


def test_offload_cannot_help_below_the_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S33."""
    rows = [logged(t, i, cached=0 if i == 0 else 1_500) for i, t in enumerate(texts(40, 400, 20))]
    path = written(tmp_path / "r.jsonl", rows)

    def told(pool: str) -> str:
        found = diagnosis(capsys, path, "--block-size", "16", "--pool-tokens", pool)
        return str(next(o["text"] for o in found["observations"] if o["id"] == "working_set"))

    assert "cannot add a hit" in told("100000")
    assert "could be kept" in told("500")


def test_no_hit_at_all_may_be_the_models_own_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S32: a request log cannot show it, and names no cause for it."""
    rows = [logged(t, i, cached=0) for i, t in enumerate(texts(40, 500, 10))]
    found = diagnosis(capsys, written(tmp_path / "r.jsonl", rows), "--block-size", "16")
    assert found["primary"] == "unknown"
    assert any("cannot be rewound" in text for text in found["findings"][0]["would_change_my_mind"])


def test_alignment_of_4096_is_never_met_by_shorter_prompts() -> None:
    """S28: a unit of 4,096 tokens."""
    found = analyse(
        [Sent(text=t) for t in texts(8, 3_000, 20)], Conditions(block_tokens=4_096), tokens_of=one_each
    )
    assert found.steps[0].hit_rate > 0.8
    assert found.reachable == 0.0


def test_replicas_in_turn_lose_what_affinity_keeps() -> None:
    """S31: 12 families of 6 prompts, one after another; a replica has seen a family or has not."""
    sent = [Sent(text=t) for family in range(12) for t in texts(6, 300, 5, seed=family)]
    rates = {
        c.value: c.hit_rate
        for c in ceilings.single_ceilings(rows_of(sent, one_each, 0, estimated=False))
        if c.what == "replicas_in_turn"
    }
    assert rates[1] == pytest.approx(5 / 6, abs=0.05)
    assert rates[2] == pytest.approx(4 / 6, abs=0.05)
    assert rates[8] < 0.05
    named = [Sent(text=s.text, replica=f"r{n // 6 % 3}") for n, s in enumerate(sent)]
    kept = analyse(named, Conditions(), tokens_of=one_each)
    routing = next(s for s in kept.steps if s.name == "routing")
    assert routing.lost == pytest.approx(0.0, abs=0.01)
    assert "as routed" in routing.text


def test_a_pool_below_the_working_set_serves_nothing() -> None:
    """S34: 20 families in turn, a pool of 10 of them: least recently used drops each before its reuse."""
    families = [texts(5, 400, 5, seed=n) for n in range(20)]
    sent = [Sent(text=family[turn]) for turn in range(5) for family in families]
    small = analyse(sent, Conditions(block_tokens=16, pool_tokens=4_000), tokens_of=one_each)
    large = analyse(sent, Conditions(block_tokens=16, pool_tokens=12_000), tokens_of=one_each)
    assert small.reachable < 0.02
    assert small.steps[-1].cause == "prefix_evicted"
    assert large.reachable == pytest.approx(large.steps[-2].hit_rate, abs=0.01)
    needed = small.pool_needed_tokens
    assert needed is not None
    assert 4_000 < needed[9] < 12_000


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def logged(text: str, second: int, *, cached: int | None = None, **body: Any) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": len(text) // 4, "completion_tokens": 3}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    request = {"model": "m", "messages": [{"role": "user", "content": text}], **body}
    return {
        "timestamp": f"2026-03-01T10:{second // 60:02d}:{second % 60:02d}",
        "request": request,
        "response": {"usage": usage},
    }


def diagnosis(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["diagnose", *argv, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_a_time_in_front_is_found_and_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S30."""
    body = " ".join(random.Random(3).choice(WORDS) for _ in range(700))
    rows = [logged(f"Current time is 15:09:{i:02d}. {body} Question {i}?", i, cached=0) for i in range(40)]
    found = diagnosis(capsys, written(tmp_path / "r.jsonl", rows))
    assert found["primary"] == "prefix_layout_unstable"
    assert "15:09:" in json.dumps(found["findings"][0]["evidence"])


def test_tools_in_another_order_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(5)
    tools = [
        {
            "type": "function",
            "function": {"name": f"tool{n}", "description": " ".join(rng.choice(WORDS) for _ in range(40))},
        }
        for n in range(12)
    ]
    rows = []
    for i in range(40):
        order = list(tools)
        rng.shuffle(order)
        rows.append(logged(f"Question {i}: {rng.random()}", i, cached=0, tools=order))
    found = diagnosis(capsys, written(tmp_path / "r.jsonl", rows))
    assert found["primary"] == "prefix_layout_unstable"
    assert "order" in found["findings"][0]["why"]


def test_a_salt_for_each_request_is_found_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [logged(t, i, cached=0, cache_salt=f"canary-salt-{i}") for i, t in enumerate(texts(40, 500, 10))]
    path = written(tmp_path / "r.jsonl", rows)
    found = diagnosis(capsys, path)
    assert found["primary"] == "prefix_disabled_by_request"
    assert "canary-salt" not in json.dumps(found)


def test_hits_as_they_should_be_are_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        logged(t, i, cached=0 if i == 0 else int(len(t) // 4 * 0.96)) for i, t in enumerate(texts(60, 800, 8))
    ]
    found = diagnosis(capsys, written(tmp_path / "r.jsonl", rows), "--block-size", "16")
    assert found["primary"] == "healthy_baseline"
    assert found["findings"] == []


def test_hits_that_did_not_come_are_unknown_with_what_to_collect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [logged(t, i, cached=0) for i, t in enumerate(texts(60, 800, 8))]
    found = diagnosis(capsys, written(tmp_path / "r.jsonl", rows))
    assert found["primary"] == "unknown"
    assert found["findings"][0]["check_first"]


def test_a_pool_that_is_known_turns_unknown_into_evicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    families = [texts(4, 400, 5, seed=n) for n in range(15)]
    sent = [family[turn] for turn in range(4) for family in families]
    path = written(tmp_path / "r.jsonl", [logged(t, i, cached=0) for i, t in enumerate(sent)])
    assert diagnosis(capsys, path, "--block-size", "16")["primary"] == "unknown"
    found = diagnosis(capsys, path, "--block-size", "16", "--pool-tokens", "3000")
    assert found["primary"] == "prefix_evicted"


def test_the_page_shows_tree_and_ceilings_and_no_escape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [logged(t.replace("alpha", "al\x1b[2Jpha"), i) for i, t in enumerate(texts(20, 200, 5))]
    assert main(["diagnose", written(tmp_path / "r.jsonl", rows)]) == 0
    page = capsys.readouterr().out
    assert "shared start" in page
    assert "by replicas" in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    "shape",
    [
        lambda body: body,
        lambda body: {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body},
        lambda body: {"request": {"body": body}, "response": {"body": {"usage": {"prompt_tokens": 9}}}},
        lambda body: {"payload": body, "ts": 1.5},
    ],
)
def test_the_shapes_that_are_known(shape: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    bodies = [{"messages": [{"role": "user", "content": parts}]}, {"prompt": "hello again"}]
    found = diagnosis(capsys, written(tmp_path / "r.jsonl", [shape(b) for b in bodies]))
    assert found["read"]["requests"] == 2


def test_lines_that_are_no_requests_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a b c"}]}\n{"x": 1}\nnot json\n\n[1]\n')
    found = diagnosis(capsys, str(path))
    assert found["read"]["requests"] == 1
    assert found["read"]["skipped_by_reason"] == {"without a prompt": 2, "not JSON": 1}


def test_mistakes_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "r.jsonl", [logged("a b c", 0)])
    assert main(["diagnose", path, "--block-size", "many"]) == 2
    assert main(["diagnose", path, path]) == 2
    assert main(["diagnose", path, "--metrics", str(tmp_path / "none")]) == 2
    assert "fix:" in capsys.readouterr().err
