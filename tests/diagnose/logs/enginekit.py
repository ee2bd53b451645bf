"""Log texts of the engines, made from templates with numbers of their own, and their diagnosis."""

from __future__ import annotations

from kvprobe.diagnose.log_judge import diagnose_log
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Diagnosis, Finding
from kvprobe.observe.logs.intake import read_text


def view_of(text: str) -> LogView:
    read = read_text(text, "server.log")
    return LogView(
        events=read.events,
        engine=read.engine,
        engine_version=read.engine_version,
        ended=read.ended,
        read={"lines": read.lines, "bytes": read.bytes},
    )


def diagnosis(text: str) -> Diagnosis:
    return diagnose_log(view_of(text))


def primary(text: str) -> Finding:
    """The primary finding; every log given here has one."""
    found = diagnosis(text).findings[0]
    assert found.role == "primary"
    return found


def vllm_stats(
    n: int,
    running: int,
    waiting: int,
    usage: float,
    *,
    tps: float = 90.0,
    prompt: float = 40.0,
    hit: float = 20.0,
) -> str:
    """The n-th periodic line of vLLM V1, ten seconds after the one before."""
    clock = f"{9 + n // 360:02d}:{n // 6 % 60:02d}:{n % 6 * 10:02d}"
    return (
        f"INFO 05-06 {clock} [loggers.py:248] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg "
        f"generation throughput: {tps} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV "
        f"cache usage: {usage}%, Prefix cache hit rate: {hit}%"
    )


def sglang_decode(n: int, running: int, queued: int, usage: float, *, tps: float = 400.0) -> str:
    tokens = round(usage * 100_000)
    return (
        f"[2026-03-04 12:{n // 60:02d}:{n % 60:02d} TP0] Decode batch, #running-req: {running}, #token: "
        f"{tokens}, token usage: {usage:.2f}, cuda graph: True, gen throughput (token/s): {tps:.2f}, "
        f"#queue-req: {queued},"
    )


def reference_start(*, allocator: str = "paged", seqs: int = 64, caching: str = "on") -> str:
    """The reference server's first lines: a pool of 511 blocks of 16 tokens, 4,096 B a token."""
    at = "INFO 2026-11-30 08:00:00,100 reference_server"
    return "\n".join(
        (
            f"{at}.build: reference_server 0.1.0: model tiny, device cpu, allocator {allocator}, preemption "
            f"recompute, max_model_len 4096, max_num_seqs {seqs}, max_num_batched_tokens 256",
            f"{at}.build: model tiny: 4 layers, 8 heads, 2 KV heads x 64, weights 36706304 B (35.0 MiB) "
            f"fp32, made in 0.30 s; threads 1",
            f"{at}.build: KV pool: 32.0 MiB fp32 at 4096 B a token; 511 blocks of 16 tokens = 8176 tokens "
            f"(and a null block); allocator {allocator}; prefix caching {caching}",
            f"{at}.build: at the full 4096 tokens a request the pool holds 2.00 requests; at most {seqs} "
            f"run in a step of 256 tokens",
            f"{at}.serve: listening on http://127.0.0.1:8000",
        )
    )


def reference_stats(
    n: int,
    running: int,
    waiting: int,
    used: int,
    cached: int = 20,
    *,
    hits: str = "35.0% of queried tokens",
    reserved: float = 0.0,
) -> str:
    free = 511 - used - cached
    return (
        f"INFO 2026-11-30 08:{n // 6:02d}:{n % 6 * 10:02d},200 reference_server.statsline: last 10.0 s: "
        f"computed 700.0 tokens/s, generated 80.0 tokens/s; running {running}, waiting {waiting}; KV usage "
        f"{100 * used / 511:.1f}% ({used} used + {cached} cached + {free} free = 511 blocks); prefix hits "
        f"{hits}; preempted 0, swapped out 0; empty 0.3 MiB tail + {reserved:.1f} MiB reserved; largest "
        f"free region 1.0 MiB; failed allocations 0"
    )


REFERENCE_STOP = (
    "INFO 2026-11-30 08:30:00,000 reference_server.serve: stopping: finishing the requests that are open "
    "(at most 30 s)"
)
