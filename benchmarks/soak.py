#!/usr/bin/env python3
"""Many short requests against a small pool, some of which are given up at random.

A real server process, its integrity check on. Requests come from a few prompts, so that equal ones
must get equal text whatever happened around them; some clients disconnect in mid-stream, and the
pool is so small that requests are preempted all the time. At the end every block must be free or
cached, nothing may be in the swap pool, and no text may differ.

    python benchmarks/soak.py [--requests 100000] [--clients 24] [-- SERVER OPTIONS]

prints a line every ten seconds and one of JSON at the end. Exit code 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = 40
SERVER = ("--kv-memory", "1MiB", "--max-model-len", "200", "--max-num-seqs", "32")
"""255 slots of the tiny model: some eight requests' worth, for two dozen clients."""
GIVE_UP_SHARE = 0.15


@dataclass(slots=True)
class Soak:
    """What happened."""

    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    whole: int = 0
    given_up: int = 0
    wrong: list[str] = field(default_factory=list)


def body_of(prompt: int, length: int, *, stream: bool) -> dict[str, Any]:
    """Families of four share their first 64 bytes."""
    rng = random.Random(prompt // 4)
    text = "".join(rng.choice("abcdefgh ") for _ in range(64)) + f" request {prompt} " + "x" * (prompt % 7)
    return {
        "model": "tiny",
        "prompt": text,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }


async def ask(client: httpx.AsyncClient, soak: Soak, rng: random.Random) -> None:
    prompt, length = rng.randrange(PROMPTS), rng.choice((1, 4, 8, 16, 30))
    if rng.random() < GIVE_UP_SHARE:
        await give_up(client, body_of(prompt, 60, stream=True), rng)
        soak.given_up += 1
        return
    reply = await client.post("/v1/completions", json=body_of(prompt, length, stream=False))
    if reply.status_code != 200:
        soak.wrong.append(f"{reply.status_code}: {reply.text[:200]}")
        return
    text = reply.json()["choices"][0]["text"]
    if soak.texts.setdefault((prompt, length), text) != text:
        soak.wrong.append(f"prompt {prompt}, {length} tokens: {text!r}")
    soak.whole += 1


async def give_up(client: httpx.AsyncClient, body: dict[str, Any], rng: random.Random) -> None:
    """Close the connection before the first byte, or after some pieces."""
    pieces = rng.choice((0, 0, 1, 5))
    try:
        async with asyncio.timeout(rng.uniform(0.0, 0.3) if pieces == 0 else 20):
            async with client.stream("POST", "/v1/completions", json=body) as reply:
                async for _ in reply.aiter_raw():
                    pieces -= 1
                    if pieces <= 0:
                        return
    except TimeoutError:
        return


async def soak_server(url: str, count: int, clients: int) -> Soak:
    soak, left = Soak(), iter(range(count))
    started = time.monotonic()

    async def one(number: int) -> None:
        rng = random.Random(number)
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            for _ in left:
                await ask(client, soak, rng)

    async def tell() -> None:
        while True:
            await asyncio.sleep(10)
            done = soak.whole + soak.given_up
            rate = done / (time.monotonic() - started)
            print(f"{done} of {count}, {rate:.0f}/s, wrong {len(soak.wrong)}", file=sys.stderr)

    telling = asyncio.create_task(tell())
    await asyncio.gather(*(one(number) for number in range(clients)))
    telling.cancel()
    return soak


def page(url: str) -> dict[str, float]:
    """Series by name, summed."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(url + "/metrics").text):
        for sample in family.samples:
            name = sample.name.removeprefix("kvprobe:")
            found[name] = found.get(name, 0) + sample.value
    return found


def settled(url: str) -> dict[str, float]:
    """The page once nothing runs; given-up requests take a step to go."""
    end = time.monotonic() + 30
    while True:
        found = page(url)
        if not found["num_requests_running"] + found["num_requests_waiting"] or time.monotonic() > end:
            return found
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("server", nargs="*", help="options of the server, after --")
    options = parser.parse_args()
    command = [sys.executable, "-m", "reference_server", "--port", "0", "--stop-with-parent", "-q"]
    environment = {**os.environ, "REFERENCE_SERVER_CHECK_INTEGRITY": "1"}
    with subprocess.Popen(
        [*command, *SERVER, *options.server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
    ) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        if not ready:
            print("the server did not start", file=sys.stderr)
            return 1
        url = json.loads(ready)["url"]
        started = time.monotonic()
        soak = asyncio.run(soak_server(url, options.requests, options.clients))
        return conclude(soak, settled(url), time.monotonic() - started, options.server)


def conclude(soak: Soak, found: dict[str, float], seconds: float, server: list[str]) -> int:
    """Print the verdict."""
    held = {
        name: found[name]
        for name in ("num_requests_running", "num_requests_waiting", "kv_blocks_used", "kv_swapped_blocks")
    }
    books = found["kv_blocks_free"] + found["kv_blocks_cached"] == found["kv_blocks_total"]
    good = not soak.wrong and books and not any(held.values())
    verdict = {
        "good": good,
        "server": server,
        "whole": soak.whole,
        "given_up": soak.given_up,
        "different_requests": len(soak.texts),
        "preemptions": found["num_preemptions_total"],
        "swapped_out_blocks": found["kv_blocks_swapped_out_total"],
        "evicted_blocks": found["kv_blocks_evicted_total"],
        "steps": found["engine_steps_total"],
        "held_at_the_end": held,
        "every_block_free": books,
        "seconds": round(seconds, 1),
        "wrong": soak.wrong[:10],
    }
    print(json.dumps(verdict))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
