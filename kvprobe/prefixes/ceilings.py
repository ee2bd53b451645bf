"""How much of these prompts a cache can reuse: under each condition by itself, and step by step.

The steps go from what the texts share to what the engine could serve; what each takes away has a cause of
its own. The last step is measured: what came from the cache, where the server said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvprobe.load.reuse_distance import ReuseDistances
from kvprobe.prefixes.caches import LruCache, chain
from kvprobe.prefixes.endless import common_starts
from kvprobe.prefixes.rows import Rows, Sent

BLOCKS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048)
REPLICAS = (1, 2, 4, 8)
USUAL_BLOCK = 16
"""Tokens: what most engines take; for ceilings of which the block is not the question."""


class Ceiling(msgspec.Struct, kw_only=True):
    """The best hit rate under one condition, others left out."""

    what: str
    value: int
    hit_rate: float


class Step(msgspec.Struct, kw_only=True):
    """Hit rate after one more condition, and the cause that explains the fall from the step before."""

    name: str
    hit_rate: float
    lost: float
    cause: str | None
    text: str


class Conditions(msgspec.Struct, kw_only=True, frozen=True):
    """What is known of the engine. Null is not known, and then left out."""

    block_tokens: int | None = None
    pool_tokens: int | None = None
    replicas: int | None = None


def hit_rate(
    rows: Rows,
    block_tokens: int,
    *,
    keyed: bool = False,
    pool_tokens: int | None = None,
    replicas: int | None = None,
    as_named: bool = True,
    last_token: bool = True,
) -> float:
    """Reused share of the prompt tokens. With `replicas`, by the replica that each request names
    (unless not `as_named`), in turn where none is named. Warm-up enters the cache and is not counted."""
    block = max(1, round(block_tokens / rows.scale))
    where = [_where(item, number, replicas, as_named) for number, item in enumerate(rows.sent)][
        : len(rows.rows)
    ]
    if pool_tokens is None:
        found = [n // block for n in common_starts(rows, where, keyed=keyed)]
    else:
        found = _from_bounded(rows, where, block, max(1, int(pool_tokens / block_tokens)), keyed=keyed)
    reused = total = 0
    for item, row, hits in zip(rows.sent, rows.rows, found, strict=True):
        usable = max(len(row) - 1, 0) // block if last_token else len(row) // block
        if not item.warmup:
            reused += min(hits, usable) * block
            total += len(row)
    return reused / total if total else 0.0


def _where(item: Sent, number: int, replicas: int | None, as_named: bool) -> str:
    """The replica that a request meets."""
    if replicas is None:
        return ""
    return (item.replica if as_named else None) or str(number % replicas)


def _from_bounded(rows: Rows, where: Sequence[str], block: int, capacity: int, *, keyed: bool) -> list[int]:
    """Blocks that each prompt finds in its replica's cache of `capacity` blocks."""
    caches: dict[tuple[str, str], LruCache] = {}
    out = []
    for item, row, place in zip(rows.sent, rows.rows, where, strict=True):
        if keyed and item.bypass is not None:
            out.append(0)
            continue
        digests = chain(row, block, item.key if keyed else ())
        out.append(caches.setdefault((place, item.model), LruCache(capacity)).admit(digests, len(digests)))
    return out


def single_ceilings(rows: Rows) -> list[Ceiling]:
    """By block size, by number of replicas in turn, by pool size: what each alone allows."""
    out = [Ceiling(what="block_tokens", value=b, hit_rate=hit_rate(rows, b)) for b in BLOCKS]
    out += [
        Ceiling(
            what="replicas_in_turn", value=n, hit_rate=hit_rate(rows, USUAL_BLOCK, replicas=n, as_named=False)
        )
        for n in REPLICAS
    ]
    return out


def pool_needed(rows: Rows, block_tokens: int = USUAL_BLOCK) -> list[int] | None:
    """Tokens that a cache must hold for 5, 10 … 100 % of the reuse (see `reuse_distance`)."""
    distances = ReuseDistances(max(1, round(block_tokens / rows.scale)), len(rows.rows))
    for item, row in zip(rows.sent, rows.rows, strict=True):
        distances.admit(row, counted=not item.warmup)
    found = distances.quantiles()
    return None if found is None else [rows.tokens(d) for d in found]


def distinct_tokens(rows: Rows) -> int:
    """Tokens of all prompts, shared starts counted once."""
    seen = common_starts(rows, [""] * len(rows.rows), keyed=True)
    return rows.tokens(sum(len(row) - start for row, start in zip(rows.rows, seen, strict=True)))


def got(rows: Rows) -> float | None:
    """What came from the cache by the usage of each request; null where none says."""
    known = [(i.cached, i.tokens) for i in rows.sent if i.cached is not None and i.tokens and not i.warmup]
    total = sum(tokens or 0 for _, tokens in known)
    return sum(cached or 0 for cached, _ in known) / total if total else None


def steps(rows: Rows, known: Conditions) -> list[Step]:
    """From what the texts share down to what the engine could serve."""
    named = sorted({i.replica for i in rows.sent if i.replica is not None})
    replicas = known.replicas or (len(named) if len(named) > 1 else None)
    shared = hit_rate(rows, 1, last_token=False)
    out = [
        Step(
            name="shared", hit_rate=shared, lost=0.0, cause=None, text="what the texts share, token by token"
        )
    ]
    _add(out, "last_token", hit_rate(rows, 1), None, "the last token of a prompt is always computed")
    block = known.block_tokens
    if block is not None and block > 1:
        text = f"whole blocks of {block:,} tokens only"
        _add(out, "block", hit_rate(rows, block), "prefix_block_granularity", text)
    keys = {i.key for i in rows.sent}
    bypassed = sorted({i.bypass for i in rows.sent if i.bypass is not None})
    if len(keys) > 1 or bypassed:
        rate = hit_rate(rows, block or 1, keyed=True)
        _add(out, "request_option", rate, "prefix_disabled_by_request", _key_text(keys, bypassed))
    if replicas is not None and replicas > 1:
        rate = hit_rate(rows, block or 1, keyed=True, replicas=replicas)
        how = f"over {replicas} replicas, as routed" if named else f"over {replicas} replicas in turn"
        _add(out, "routing", rate, "prefix_routing_spread", how)
    if known.pool_tokens is not None:
        rate = hit_rate(
            rows, block or 1, keyed=True, replicas=replicas, pool_tokens=known.pool_tokens // (replicas or 1)
        )
        text = f"a pool of {known.pool_tokens:,} tokens, least recently used out first"
        _add(out, "pool", rate, "prefix_evicted", text)
    return out


def _add(out: list[Step], name: str, rate: float, cause: str | None, text: str) -> None:
    lost = out[-1].hit_rate - rate
    out.append(Step(name=name, hit_rate=rate, lost=max(0.0, lost), cause=cause, text=text))


def _key_text(keys: Iterable[Sequence[str]], bypassed: Sequence[str]) -> str:
    count = len(set(map(tuple, keys)))
    told = [f"{count:,} different salts or adapters"] if count > 1 else []
    told += [f"`{name}` leaves the cache out" for name in bypassed]
    return " and ".join(told)
