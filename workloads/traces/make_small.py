"""Makes `small.jsonl`: 60 requests of made-up conversations about a few documents, in 12 seconds.

Run it again and the file comes out the same, byte for byte:

    python workloads/traces/make_small.py > workloads/traces/small.jsonl
"""

from __future__ import annotations

import json
import random
import sys

BLOCK = 64
REQUESTS = 60
SPAN_S = 12.0
DOCUMENTS = 6


def main() -> None:
    """Writes the trace to stdout, sorted by time."""
    rng = random.Random(20260301)
    ids = iter(range(1, 1_000_000))
    system = [next(ids) for _ in range(2)]
    documents = [[next(ids) for _ in range(rng.randint(3, 10))] for _ in range(DOCUMENTS)]
    waiting: list[tuple[float, int, int, list[int]]] = []
    rows: list[dict[str, object]] = []
    for session in range(REQUESTS // 2):
        at_s = (waiting[-1][0] if waiting else 0.0) + rng.expovariate(1.6)
        document = documents[min(int(rng.paretovariate(0.8)) - 1, DOCUMENTS - 1)]
        waiting.append((at_s, session, rng.randint(1, 3), [*system, *document]))
    for at_s, number, turns, blocks in waiting:
        history = list(blocks)
        for turn in range(1, turns + 1):
            history = [*history, next(ids)]
            tokens = len(history) * BLOCK - rng.randint(1, BLOCK - 1)
            answer = rng.choice([8, 12, 16, 24, 40])
            rows.append(
                {
                    "t": at_s,
                    "in": tokens,
                    "out": answer,
                    "hash_ids": list(history),
                    "block": BLOCK,
                    "session": f"s{number:02d}",
                    "turn": turn,
                }
            )
            history = [*history[:-1], next(ids)]
            at_s += 0.8 + rng.expovariate(1.0)
    rows.sort(key=lambda row: float(str(row["t"])))
    rows = rows[:REQUESTS]
    scale = SPAN_S / float(str(rows[-1]["t"]))
    for row in rows:
        row["t"] = round(float(str(row["t"])) * scale, 3)
        sys.stdout.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
