"""A trace like Mooncake's conversation trace, of any length, made from a seed: the same rows every time.

Lengths follow quantiles published for that trace (input p50 6909, p95 39550, p99 85400; output 350, 698, 1118
tokens; kvcache-ai/Mooncake, FAST25 traces, Apache-2.0), log-linear between; arrivals come in bursts, CV 3.
Chats of several turns carry their history as blocks of 512 tokens, under one system block for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvprobe.plan.simulate.rows import Chunk

BLOCK_TOKENS = 512
_INPUT = ((0.0, 0.5, 0.95, 0.99, 1.0), (900, 6909, 39550, 85400, 120000))
_OUTPUT = ((0.0, 0.5, 0.95, 0.99, 1.0), (2, 350, 698, 1118, 2000))
_CHATS = 2048
"""Open at a time."""
_GOES_ON = 0.62
"""Chance that a request continues a chat."""


def rows(count: int, *, rate: float, seed: int = 1, chunk: int = 32768) -> Iterator[Chunk]:
    """`count` requests at `rate` a second on average."""
    rng = np.random.default_rng(seed)
    chats: list[NDArray[np.uint64]] = [np.zeros(1, dtype=np.uint64) for _ in range(_CHATS)]
    next_id, now = 1, 0.0
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        gaps = rng.gamma(1 / 9, 9 / rate, size)
        times = now + np.cumsum(gaps)
        now = float(times[-1])
        wanted = _draw(_INPUT, rng, size)
        outputs = _draw(_OUTPUT, rng, size)
        ids: list[NDArray[np.uint64]] = []
        goes_on, places = rng.random(size) < _GOES_ON, rng.integers(0, _CHATS, size)
        for row in range(size):
            blocks = -(-int(wanted[row]) // BLOCK_TOKENS)
            known = chats[places[row]] if goes_on[row] else chats[places[row]][:1]
            known = known[: max(blocks - 1, 1)]
            new = np.arange(next_id, next_id + blocks - len(known), dtype=np.uint64)
            next_id += len(new)
            chats[places[row]] = np.concatenate((known, new))
            ids.append(chats[places[row]])
        yield Chunk(
            times_s=times,
            in_tokens=wanted,
            out_tokens=outputs,
            first=np.concatenate(([0], np.cumsum([len(one) for one in ids]))).astype(np.int64),
            ids=np.concatenate(ids),
            block_tokens=BLOCK_TOKENS,
        )


def _draw(
    quantiles: tuple[tuple[float, ...], tuple[int, ...]], rng: np.random.Generator, size: int
) -> NDArray[np.int64]:
    levels, values = quantiles
    return np.exp(np.interp(rng.random(size), levels, np.log(values))).round().astype(np.int64)
