"""How fast a /metrics page is read, as a ratio to prometheus-client's parser on the same text.

    python benchmarks/scrape_speed.py [--lines 1400] [--rounds 30] [--json]

The page is made here in the shape of a vLLM page: several data-parallel engines, every histogram, the
`_created` gauges, and the Python client's own series. Each round has new numbers, as a live server has.
Both read every round; the middle (median) of the rounds counts, in CPU time of this process. The goal: all
of ours, from text to canonical readings, within a seventh of the parser's time for the samples alone.
Leaves with 1 when the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvprobe.observe.dialects import read_page

GOAL = 1 / 7
_HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
    *("iteration_tokens_total", "request_params_n", "request_params_max_tokens"),
)
_COUNTERS = (
    *("prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits"),
    *("external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"),
)
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_EDGES = tuple(0.001 * 1.8**n for n in range(22))


class Server:
    """A registry that looks like vLLM's and lives on from round to round."""

    def __init__(self, lines: int) -> None:
        self._random = random.Random(20261130)
        self._registry = CollectorRegistry()
        labels = ("engine", "model_name")
        own = self._registry
        self._histograms = [
            Histogram(f"vllm:{name}", "Of a request.", labels, buckets=_EDGES, registry=own)
            for name in _HISTOGRAMS
        ]
        self._counters = [Counter(f"vllm:{name}", "Since start.", labels, registry=own) for name in _COUNTERS]
        self._gauges = [Gauge(f"vllm:{name}", "Now.", labels, registry=own) for name in _GAUGES]
        self.engines = 0
        while self._count() < lines:
            self.engines += 1
            self.live()

    def live(self) -> str:
        """Let every engine do something; the page after it."""
        for engine in range(self.engines):
            of = (str(engine), "meta-llama/Llama-3.1-8B-Instruct")
            for histogram in self._histograms:
                histogram.labels(*of).observe(self._random.expovariate(1.0))
            for counter in self._counters:
                counter.labels(*of).inc(self._random.randrange(1, 5000))
            for gauge in self._gauges:
                gauge.labels(*of).set(self._random.random())
        return generate_latest(self._registry).decode()

    def _count(self) -> int:
        return generate_latest(self._registry).count(b"\n")


def cpu_s(work: Callable[[str], object], pages: Sequence[str]) -> float:
    """Median CPU seconds a page."""
    spent = []
    for page in pages:
        begin = time.process_time()
        work(page)
        spent.append(time.process_time() - begin)
    return statistics.median(spent)


def measure(lines: int, rounds: int) -> dict[str, float]:
    server = Server(lines)
    pages = [server.live() for _ in range(rounds)]

    def oracle(page: str) -> list[object]:
        return [sample for family in text_string_to_metric_families(page) for sample in family.samples]

    parser_s = cpu_s(oracle, pages)
    first_s = cpu_s(read_page, pages[:1])  # nothing of the page was seen before
    full_s = cpu_s(read_page, pages)
    short_s = cpu_s(lambda page: read_page(page, buckets=False), pages)
    return {
        "lines": pages[0].count("\n"),
        "bytes": len(pages[0]),
        "engines": server.engines,
        "parser_s": parser_s,
        "first_page_s": first_s,
        "page_s": full_s,
        "page_without_buckets_s": short_s,
        "first_ratio": first_s / parser_s,
        "ratio": full_s / parser_s,
        "ratio_without_buckets": short_s / parser_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1400)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    got = measure(args.lines, args.rounds)
    if args.json:
        print(json.dumps(got))
    else:
        print(f"{got['lines']:,.0f} lines, {got['bytes']:,.0f} bytes, {got['engines']:.0f} engines")
        print(f"prometheus-client's parser          {1e3 * got['parser_s']:7.2f} ms")
        for name, key, ratio in (
            ("kvprobe, first page", "first_page_s", "first_ratio"),
            ("kvprobe, every page after it", "page_s", "ratio"),
            ("kvprobe, without buckets (sampler)", "page_without_buckets_s", "ratio_without_buckets"),
        ):
            print(f"{name:35s} {1e3 * got[key]:7.2f} ms   ratio {got[ratio]:.3f} (1/{1 / got[ratio]:.1f})")
        print(f"goal: at most {GOAL:.3f} (1/7)")
    return 0 if got["ratio"] <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
