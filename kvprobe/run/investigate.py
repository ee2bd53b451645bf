"""`kvprobe run --investigate`: when the load is over, ask the server what the load left open.

A first diagnosis says which causes remain; the experiments that separate them run within a stated budget
(requests, tokens, seconds); what they showed becomes facts of the run, and the diagnosis is made again
with them. A healthy run is not experimented on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kvprobe.errors import KvprobeError
from kvprobe.evidence.facts import Fact
from kvprobe.run.options import LoadEnding, Prepared
from kvprobe.run.progress import Progress

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.evidence.rundata import RunData

log = logging.getLogger("kvprobe.run")

_PREFIX: Final = ("repeat", "aligned")
_POOL: Final = ("at_rest", "long_alone", "burst")
_ALL: Final = ("at_rest", "repeat", "aligned", "long_alone", "burst")
SEPARATES: Final[dict[str, tuple[str, ...]]] = {
    "unknown": _ALL,
    "prefix_block_granularity": _PREFIX,
    "prefix_caching_off": _PREFIX,
    "prefix_disabled_by_request": _PREFIX,
    "prefix_evicted": _PREFIX,
    "prefix_layout_unstable": _PREFIX,
    "kv_pool_pressure": _POOL,
    "logical_kv_too_large": _POOL,
    "reservation_policy_waste": _POOL,
    "allocator_fragmentation": _POOL,
    "queue_limit": ("burst",),
    "kv_pool_leak": ("at_rest",),
    "cancellation_ignored": ("at_rest",),
    "prefill_compute_bound": ("long_alone", "repeat"),
}
"""Cause -> experiments whose outcomes differ if it is true or not."""
DEFAULT_BLOCK: Final = 16
DEFAULT_LIMIT: Final = 4096


def investigate(prepared: Prepared, ending: LoadEnding, progress: Progress) -> None:
    """Adds facts named `experiment` to the ending. Never raises: what cannot be asked is not known."""
    if ending.server_exit_code is not None:
        return
    try:
        data, diagnosis = _first_look(prepared, ending)
    except KvprobeError as error:
        log.info("no investigation: %s", error)
        return
    wanted = wanted_by(diagnosis)
    if not wanted:
        progress.say("nothing to investigate: no cause remains that an experiment would separate")
        return
    facts = _experiment(prepared, data, wanted, progress)
    ending.facts.extend(facts)


def wanted_by(diagnosis: Diagnosis) -> list[str]:
    """Names of the experiments for the causes that remain, each once."""
    if diagnosis.validity is not None and not diagnosis.validity.valid:
        return []
    named = [f.cause for f in diagnosis.findings if f.role != "ruled_out"]
    return list(dict.fromkeys(name for cause in named for name in SEPARATES.get(cause, ())))


def _first_look(prepared: Prepared, ending: LoadEnding) -> tuple[RunData, Diagnosis]:
    from kvprobe.diagnose.judge import diagnose_run
    from kvprobe.run.conclude import facts_of_load
    from kvprobe.summary.build import summarise

    data = prepared.run_dir.load()
    data.facts += facts_of_load(prepared, ending, data)
    data.status = "complete" if ending.reason == "planned" else "partial"
    return data, diagnose_run(data, summarise(data))


def _experiment(prepared: Prepared, data: RunData, wanted: list[str], progress: Progress) -> list[Fact]:
    from kvprobe.observe.metrics import MetricsClient
    from kvprobe.run import experiments
    from kvprobe.run.loading import metrics_headers
    from kvprobe.run.target import control_client

    sizes = _sizes(prepared, data)
    insecure = prepared.options.insecure
    metrics = MetricsClient(prepared.metrics_url, metrics_headers(prepared), insecure=insecure)
    facts: list[Fact] = []
    with control_client(prepared.api_key, insecure=insecure) as client:
        bench = experiments.Bench(prepared, client, metrics)
        progress.say(
            f"investigating: {', '.join(wanted)} (at most {experiments.MOST_REQUESTS} requests, "
            f"{experiments.MOST_TOKENS} tokens, {experiments.MOST_S:g} s)"
        )
        for name in wanted:
            result = getattr(experiments, name)(bench, **sizes)
            value = {"name": name, "result": result}
            facts.append(Fact(name="experiment", value=value, source="investigate"))
            log.info("experiment %s: %s", name, result)
        left = bench.budget
    metrics.close()
    used = {
        "requests": experiments.MOST_REQUESTS - left.requests,
        "tokens": experiments.MOST_TOKENS - left.tokens,
        "requests_allowed": experiments.MOST_REQUESTS,
        "tokens_allowed": experiments.MOST_TOKENS,
        "seconds_allowed": experiments.MOST_S,
    }
    return [*facts, Fact(name="investigation_budget", value=used, source="investigate")]


def _sizes(prepared: Prepared, data: RunData) -> dict[str, Any]:
    """Block, context limit and the load's longest prompt, in tokens."""
    from kvprobe.summary.memory import cache_config, whole

    config = cache_config(data)
    longest = max((r.prompt_tokens or r.asked_prompt_tokens or 0 for r in data.records), default=0)
    return {
        "block": whole(config.get("block_size")) or DEFAULT_BLOCK,
        "limit": prepared.target.max_model_len_tokens or DEFAULT_LIMIT,
        "longest": longest,
    }
