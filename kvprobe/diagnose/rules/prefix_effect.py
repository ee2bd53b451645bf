"""What prefix caching did in this run: an expected effect, told with its intervals."""

from __future__ import annotations

from kvprobe.diagnose.contrast import MIN_EACH, MIN_FAMILIES, Contrast, contrast
from kvprobe.diagnose.decode import UNCHANGED, Decode, judge_ratio
from kvprobe.diagnose.model import Observation, Quantity
from kvprobe.diagnose.rules.base import Outcome
from kvprobe.diagnose.view import View
from kvprobe.summary.quantiles import Quantile, Ratio
from kvprobe.summary.units import percent, seconds, whole

MUCH_QUEUEING = 0.25
"""From this share of TTFT on, the queue and not prefill decides what a cold and a warm request differ by."""


def prefix_effect(view: View) -> Outcome:
    """Needs requests that hit and requests that did not; concludes how TTFT and decode differ."""
    found = contrast(view.ok, view.run.records)
    if found is None:
        return Outcome()
    if found.too_small is not None:
        return Outcome(observations=_share_only(view, found))
    queued = _queue_share(view)
    masked = _masked(queued) if queued is not None and queued > MUCH_QUEUEING else []
    told = [_ttft_sentence(found), *_decode_sentences(found), *_meaning(found), *masked, *_caveats(found)]
    text = " ".join(told)
    return Outcome(observations=[Observation(id="prefix_cache_effect", text=text, facts=_facts(found))])


def _share_only(view: View, c: Contrast) -> list[Observation]:
    """Too few cold requests to compare with, as where all share one prompt or each turn follows the last:
    what came from the cache is said all the same, and nothing where that is not known."""
    got = view.summary.metrics.prefix_hit_rate.got
    if got is None:
        return []
    reach = view.summary.metrics.prefix_hit_rate.ceiling
    allowed = f", where these prompts allow {percent(reach)}" if reach is not None else ""
    cold = f" and {whole(len(c.cold))} did not" if c.cold else ""
    # Where all share one prompt no longer run would change that, and so nothing is asked for.
    needs = (
        f" (that takes {MIN_EACH} cold ones over {MIN_FAMILIES} prefixes, and {MIN_EACH} warm ones)"
        if c.families > 1
        else ""
    )
    text = (
        f"{percent(got)} of the prompt tokens came from the prefix cache{allowed}; {whole(len(c.warm))} "
        f"requests began with a cached prefix{cold}, too few to compare for what a hit saves{needs}."
    )
    facts = _counts(c) | {"got": Quantity(got, "ratio"), "ceiling": Quantity(reach, "ratio")}
    return [Observation(id="prefix_cache_effect", text=text, facts=facts)]


def _interval(ratio: Ratio) -> str:
    return (
        f"[{ratio.lo:.2f}, {ratio.hi:.2f}]"
        if ratio.lo is not None and ratio.hi is not None
        else "[no interval]"
    )


def _ttft_fell(c: Contrast) -> bool:
    return c.ttft_ratio is not None and c.ttft_ratio.lo is not None and c.ttft_ratio.lo > 1.0


def _median(q: Quantile | None) -> str:
    return seconds(q.value) if q is not None and q.value is not None else "not known"


def _ttft_sentence(c: Contrast) -> str:
    ratio = c.ttft_ratio
    who = (
        f"{_median(c.ttft_cold)} for {whole(len(c.cold))} cold requests ({whole(c.families)} prefixes) "
        f"against {_median(c.ttft_warm)} for {whole(len(c.warm))} warm ones"
    )
    if ratio is None or ratio.value is None:
        return f"TTFT: median {who}."
    if _ttft_fell(c):
        return (
            f"TTFT fell {ratio.value:.1f} times {_interval(ratio)} where the prefix was cached: median {who}."
        )
    told = f"median {who}, ratio {ratio.value:.2f} {_interval(ratio)}"
    return f"TTFT was not shown to fall where the prefix came again: {told}."


_HOW = {
    "together": "TPOT of warm requests is {ratio} that of cold ones that decoded at the same time",
    "undisturbed": "the gap between chunks of warm requests is {ratio} that of cold ones, where no other "
    "request was being prefilled",
    "plain": "TPOT of warm requests is {ratio} that of cold ones (others' prefill included)",
}


def _decode_sentences(c: Contrast) -> list[str]:
    decode = c.decode
    if decode is None or decode.ratio.value is None:
        return ["Decode speed cannot be compared: no usage, or single-token answers."]
    ratio = decode.ratio
    told = _HOW[decode.method].format(ratio=f"{ratio.value:.2f} times {_interval(ratio)}")
    return [_decode_verdict(decode, told), *_disturbed(c, decode)]


def _decode_verdict(decode: Decode, told: str) -> str:
    lo, hi = decode.ratio.lo, decode.ratio.hi
    if decode.verdict == "unchanged" and lo is not None and hi is not None:
        width = max(1.0, 100 * max(abs(lo - 1.0), abs(hi - 1.0)))
        return f"Decode did not change, to within {width:.0f} %: {told}."
    if decode.verdict == "differs":
        return f"Decode differed: {told}; prefix caching itself does not explain that."
    if decode.method == "plain" and judge_ratio(decode.ratio) == "differs":
        return (
            f"Whether decode changed cannot be told: {told}, and too few cold requests decoded beside warm "
            "ones, or undisturbed, to take that prefill out."
        )
    return f"Whether decode changed cannot be told to within {100 * UNCHANGED:.0f} %: {told}."


def _disturbed(c: Contrast, decode: Decode) -> list[str]:
    """Plain TPOT tells another story when cold requests decode beside the prefill of others."""
    plain = c.tpot_ratio
    if decode.method == "plain" or decode.verdict != "unchanged" or plain is None or plain.value is None:
        return []
    if judge_ratio(plain) != "differs":
        return []
    return [
        f"(Plain TPOT differs, {plain.value:.2f} times {_interval(plain)}: cold requests come together, and "
        "the prefill of each slows the decode of the others.)"
    ]


def _meaning(c: Contrast) -> list[str]:
    if not _ttft_fell(c):
        return []
    return ["This is what prefix caching does: it saves prefill, never decode."]


def _queue_share(view: View) -> float | None:
    """Share of TTFT that requests spent waiting at the server, by its own histograms; null without."""
    queue, ttft = view.increase("engine.queue_seconds_sum"), view.increase("engine.ttft_seconds_sum")
    return min(queue.value / ttft.value, 1.0) if queue and ttft and ttft.value > 0 else None


def _masked(share: float) -> list[str]:
    return [
        f"But {percent(share)} of all TTFT was waiting in the server's queue, by its own histograms; that "
        "wait is in both medians, and a run with fewer users would show what a hit saves by itself."
    ]


def _caveats(c: Contrast) -> list[str]:
    basis = (
        ["The server reports no cached tokens: cold is the first request of a prefix, warm those after it."]
        if c.basis == "send_order"
        else []
    )
    return [*basis, *(f"Mind that {note}." for note in c.notes)]


def _counts(c: Contrast) -> dict[str, Quantity]:
    return {
        "cold_requests": Quantity(len(c.cold), "count"),
        "cold_prefixes": Quantity(c.families, "count"),
        "warm_requests": Quantity(len(c.warm), "count"),
    }


def _facts(c: Contrast) -> dict[str, Quantity]:
    facts = _counts(c)
    for name, q in (("ttft_cold_p50", c.ttft_cold), ("ttft_warm_p50", c.ttft_warm)):
        if q is not None:
            facts[name] = Quantity(q.value, "s")
            facts[f"{name}_ci"] = Quantity([q.lo, q.hi], "s")
    decode = c.decode.ratio if c.decode is not None else None
    for name, ratio in (
        ("ttft_cold_over_warm", c.ttft_ratio),
        ("tpot_warm_over_cold", c.tpot_ratio),
        ("decode_warm_over_cold", decode),
    ):
        if ratio is not None:
            facts[name] = Quantity(ratio.value, "ratio")
            facts[f"{name}_ci"] = Quantity([ratio.lo, ratio.hi], "ratio")
    if c.decode is not None:
        facts["decode_verdict"] = Quantity(c.decode.verdict)
        facts["decode_method"] = Quantity(c.decode.method)
    return facts
