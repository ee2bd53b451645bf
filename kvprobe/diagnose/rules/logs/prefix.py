"""The prefix row of the symptom table, from what start-up lines and hit rates tell.

A log seldom shows the prompts, so most findings here are `likely` at best: a hit rate of 0 looks the same
when prefixes are too short, when they differ, and when nothing is shared at all.
"""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, flag, percent, plural, told, whole
from kvprobe.evidence.events import Event

_READINGS: Final = 3
_LARGE_BLOCK: Final = 256
_ZERO: Final = 0.005
_LOW: Final = 0.05
_DROP: Final = 0.2
_EARLY: Final = 0.15
_LONG_PROMPT: Final = 400


def rates(view: LogView) -> list[Event]:
    """Readings with a hit rate in which prompts were computed, or whose prefill says what was cached."""
    found = []
    for e in view.all("engine_stats"):
        prompts = (e.get("prompt_tokens_per_s") or 0) > 0 or (e.get("running") or 0) > 0
        if e.get("prefix_hit_rate") is not None and prompts:
            found.append(e)
    return found


def hit_rate(view: LogView) -> tuple[float, int] | None:
    """The last hit rate and the number of readings; SGLang's from cached and new tokens of its prefills."""
    told_rates = rates(view)
    if told_rates:
        return float(told_rates[-1].get("prefix_hit_rate")), len(told_rates)
    prefills = [
        e for e in view.all("engine_stats") if e.get("cached_tokens") is not None and e.get("new_tokens")
    ]
    queried = sum(e.get("cached_tokens") + e.get("new_tokens") for e in prefills)
    if not queried:
        return None
    return sum(e.get("cached_tokens") for e in prefills) / queried, len(prefills)


def block_too_large(view: LogView) -> list[LogCandidate]:
    """No hits, and blocks of hundreds of tokens: a shared prefix below one block can never hit."""
    rate = hit_rate(view)
    sizes = [
        e for e in view.all("pool_size", "config", "block_enlarged", "attention_block") if e.get("block_size")
    ]
    if rate is None or not sizes:
        return []
    hits, readings = rate
    block = max(float(e.get("block_size")) for e in sizes)
    if hits > _ZERO or block < _LARGE_BLOCK or readings < 2 or flag(view, "enable_prefix_caching") is False:
        return []
    source = next(e for e in sizes if float(e.get("block_size")) == block)
    speculative = told(view, "speculative_tokens") or any(e.get("speculative") for e in view.all("config"))
    unit = 2 * block if speculative else block
    found = [
        candidate(
            "prefix_block_granularity",
            # Hybrids have reuse off unless asked for; and two readings may be two different prompts.
            "likely"
            if readings >= _READINGS and flag(view, "enable_prefix_caching") is True
            else "suspected",
            f"0 % hits in {plural(readings, 'reading')} with blocks of {whole(block)} tokens: only whole "
            f"blocks are reused, so a shared prefix under {whole(unit)} tokens can never hit.",
            [cite(source, "block_size"), *cites(rates(view)[-1:], 1)],
            fatal=False,
            at=source,
            phase="serve",
            check_first=[f"the tokens that requests really share, against {whole(unit)}"],
            remedy=[
                f"a shared prefix of at least {whole(unit)} tokens (the longer system prompt first)",
                "a smaller block where the model allows it (hybrids enlarge it to fit their state)",
            ],
            would_change_my_mind=[f"requests that share more than {whole(unit)} tokens and still miss"],
        )
    ]
    if speculative:
        found.append(_spec_drop(view, block, hits, source))
    return found


def _spec_drop(view: LogView, block: float, hits: float, source: Event) -> LogCandidate:
    return candidate(
        "prefix_spec_decode_drop",
        "suspected",
        f"Speculation (EAGLE or MTP) drops one more unit of {whole(block)} tokens from every hit; the hit "
        f"rate is {percent(hits)}.",
        [cite(source), *cites([e for e in view.all("config") if e.get("speculative")], 1)],
        fatal=False,
        root=False,
        at=source,
        phase="serve",
        check_first=["the same requests without speculation: hits should rise by one unit per request"],
        remedy=["weigh speculation against reuse for this traffic", "a prefix longer than two units"],
        would_change_my_mind=["the same rate without speculation"],
    )


def speculation(view: LogView) -> list[LogCandidate]:
    """Speculation with large units and a low, not zero, hit rate."""
    rate = hit_rate(view)
    sizes = [
        e for e in view.all("pool_size", "config", "block_enlarged", "attention_block") if e.get("block_size")
    ]
    speculative = [e for e in view.all("config") if _drops(str(e.get("speculative") or ""))]
    if rate is None or not sizes or not speculative or rate[1] < _READINGS:
        return []
    block = max(float(e.get("block_size")) for e in sizes)
    if not _ZERO < rate[0] < _DROP or block < _LARGE_BLOCK:
        return []
    return [_spec_drop(view, block, rate[0], speculative[0])]


def _drops(method: str) -> bool:
    return any(m in method.lower() for m in ("eagle", "mtp"))


def disabled(view: LogView) -> list[LogCandidate]:
    """The engine says that this model cannot reuse prefixes, or that reuse is switched off."""
    found: list[LogCandidate] = []
    for e in [*view.all("prefix_unsupported"), *(p for p in view.all("prefix_off") if _for_model(p))][:1]:
        found.append(
            candidate(
                "prefix_disabled_for_model",
                "likely" if _computed(view) >= _READINGS else "suspected",
                f"The engine switched prefix reuse off for this model: {e.text[:160]}",
                [cite(e)],
                fatal=False,
                at=e,
                check_first=[
                    "the architecture: hybrid, recurrent, sliding window, encoder-decoder or multimodal"
                ],
                remedy=[
                    "a version that supports it for this architecture, or another model",
                    "do not expect hits",
                ],
                would_change_my_mind=["hits above 0 for the same model"],
            )
        )
    off = _switched_off(view)
    if off is not None and not found:
        found.append(off)
    return found


def _computed(view: LogView) -> int:
    """Readings in which prompts were computed and none was reused."""
    rate = hit_rate(view)
    return 0 if rate is None or rate[0] > _ZERO else rate[1]


def _for_model(event: Event) -> bool:
    text = event.text.lower()
    return any(w in text for w in ("model", "hybrid", "mamba", "multimodal", "chunked", "encoder"))


def _switched_off(view: LogView) -> LogCandidate | None:
    rate = hit_rate(view)
    said = [
        e
        for e in view.all("config")
        if e.get("enable_prefix_caching") is False or e.get("disable_radix_cache") is True
    ]
    said += [e for e in view.all("prefix_off") if not _for_model(e)]
    zero = rate is None or rate[0] <= _ZERO
    prompts = [e for e in view.all("engine_stats") if e.get("prompt_tokens_per_s") or e.get("new_tokens")]
    swapped = any(e.get("swapped") is not None for e in view.all("engine_stats"))
    if not said or not zero or len(prompts) < _READINGS or (swapped and rate is None):
        return None
    return candidate(
        "prefix_caching_off",
        "likely" if any(e.engine == "reference" for e in said) or view.all("prefix_off") else "suspected",
        f"Prefix caching is switched off, and prompts are computed in {plural(len(prompts), 'reading')} "
        f"without a single hit.",
        cites(said, 2),
        fatal=False,
        root=False,
        at=said[0],
        check_first=["whether requests share a prefix at all"],
        remedy=["--enable-prefix-caching (vLLM), no --disable-radix-cache (SGLang), no --no-prefix-caching"],
        would_change_my_mind=["prompts that share nothing: then it costs nothing"],
    )


def evicted(view: LogView) -> list[LogCandidate]:
    """A hit rate that falls while the pool fills: prefixes are evicted before their reuse."""
    known = [e for e in rates(view) if e.get("kv_usage") is not None]
    if len(known) < 2 * _READINGS:
        return _cache_limit(view)
    third = len(known) // 3
    first, last = known[:third], known[-third:]
    before = sum(e.get("prefix_hit_rate") for e in first) / third
    after = sum(e.get("prefix_hit_rate") for e in last) / third
    usage = max(float(e.get("kv_usage")) for e in last)
    if before - after < _DROP or usage < 0.8 or max(float(e.get("kv_usage")) for e in first) > usage:
        return _cache_limit(view)
    return [
        candidate(
            "prefix_evicted",
            "likely",
            f"The hit rate fell from {percent(before)} to {percent(after)} while usage rose to "
            f"{percent(usage)}: running requests push reusable prefixes out of the pool.",
            [cite(first[0], "prefix_hit_rate", "kv_usage"), cite(last[-1], "prefix_hit_rate", "kv_usage")],
            fatal=False,
            at=last[0],
            phase="serve",
            check_first=[
                "pool tokens / prompt tokens = prompts that can stay cached, against the distinct prefixes "
                "in use"
            ],
            remedy=[
                "a larger pool (or fp8 KV)",
                "fewer concurrent sequences",
                "offload of evicted blocks to host memory",
            ],
            would_change_my_mind=["a change of traffic to other prefixes at that moment"],
        )
    ]


def _cache_limit(view: LogView) -> list[LogCandidate]:
    events = view.all("prompt_cache_full")
    if len(events) < _READINGS:
        return []
    return [
        candidate(
            "prefix_evicted",
            "suspected",
            f"The cache of prompts reached its limit {len(events)} times and dropped the oldest ones.",
            cites(events, 2),
            fatal=False,
            at=events[0],
            phase="serve",
            check_first=["whether the dropped prompts come again"],
            remedy=["a larger --cache-ram", "fewer distinct conversations per server"],
            would_change_my_mind=["dropped prompts that never return"],
        )
    ]


RULES: tuple[LogRule, ...] = (block_too_large, speculation, disabled, evicted)
