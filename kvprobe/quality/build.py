"""From the answers of both sides to the numbers of one pass, and from passes to the whole document."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.diagnose.model import Diagnosis, Evidence, Finding, Quantity
from kvprobe.quality import statistics as stats
from kvprobe.quality.asking import Given
from kvprobe.quality.divergence import divergence
from kvprobe.quality.items import Item
from kvprobe.quality.judging import right, valid_json
from kvprobe.quality.model import Pass, Server, Test, Verdict


def one_pass(items: Sequence[Item], a: Sequence[Given], b: Sequence[Given], *, pressure: bool) -> Pass:
    """An unanswered question is a wrong answer of that side; it is counted apart as well."""
    right_a = [g.error is None and right(i, g.text) for i, g in zip(items, a, strict=True)]
    right_b = [g.error is None and right(i, g.text) for i, g in zip(items, b, strict=True)]
    kinds = list(dict.fromkeys(i.kind for i in items))
    tests = [_test("all", items, right_a, right_b, None)]
    tests += [_test(kind, items, right_a, right_b, kind) for kind in kinds]
    _adjust(tests[1:])
    objects = [n for n, i in enumerate(items) if i.method == "json"]
    valid = (
        sum(valid_json(a[n].text) for n in objects),
        sum(valid_json(b[n].text) for n in objects),
    )
    return Pass(
        pressure=pressure,
        tests=tests,
        divergence=divergence(a, b),
        json_valid=valid if objects else None,
        unanswered=(sum(g.error is not None for g in a), sum(g.error is not None for g in b)),
    )


def _test(name: str, items: Sequence[Item], a: Sequence[bool], b: Sequence[bool], kind: str | None) -> Test:
    chosen = [n for n, item in enumerate(items) if kind is None or item.kind == kind]
    found = stats.paired([a[n] for n in chosen], [b[n] for n in chosen])
    depths: dict[str, tuple[int, int, int]] = {}
    for n in chosen if kind is not None else []:
        if (depth := items[n].depth) is not None:
            count, base, cand = depths.get(f"{depth:.0%}", (0, 0, 0))
            depths[f"{depth:.0%}"] = (count + 1, base + a[n], cand + b[n])
    return Test(
        kind=name,
        n=found.n,
        right_baseline=found.both + found.only_a,
        right_candidate=found.both + found.only_b,
        only_baseline=found.only_a,
        only_candidate=found.only_b,
        difference=found.difference,
        difference_ci=stats.difference_interval(found),
        p=stats.mcnemar_p(found),
        by_depth=depths,
    )


def _adjust(tests: Sequence[Test]) -> None:
    """Holm's step-down correction over the kinds (Holm 1979)."""
    worst = 0.0
    for place, test in enumerate(sorted(tests, key=lambda t: t.p or 0.0)):
        worst = max(worst, min(1.0, (test.p or 0.0) * (len(tests) - place)))
        test.p_adjusted = worst


LOW_FORMATS = ("int8", "fp8", "int4", "fp4", "nvfp4", "q8", "q5", "q4", "e4m3", "e5m2")


def diagnose(verdict: Verdict, summary: str, baseline: Server, candidate: Server, certain: bool) -> Diagnosis:
    """`kv_quant_error` where the formats differ and a loss is shown; a loss without that is `unknown`."""
    if verdict == "no_loss_shown":
        return Diagnosis(primary="healthy_baseline")
    if verdict == "n_too_small":
        text = f"Whether quality fell is not known: {summary}."
        return Diagnosis(
            primary="unknown", findings=[_finding("unknown", "suspected", text, baseline, candidate)]
        )
    formats = baseline.kv_dtype, candidate.kv_dtype
    if None not in formats and formats[0] == formats[1]:
        why = f"Quality fell, and not by the KV format, which is {formats[0]} on both sides: {summary}."
        return Diagnosis(
            primary="unknown", findings=[_finding("unknown", "suspected", why, baseline, candidate)]
        )
    known = None not in formats
    level = ("certain" if certain else "likely") if known else "suspected"
    what = f"{formats[0]} against {formats[1]}" if known else "the KV formats are not told by the servers"
    why = f"KV precision damages the output ({what}): {summary}."
    found = _finding("kv_quant_error", level, why, baseline, candidate)
    return Diagnosis(primary="kv_quant_error", findings=[found])


def _finding(cause: str, confidence: str, why: str, baseline: Server, candidate: Server) -> Finding:
    sides = [
        Evidence(
            source=f"{name} {server.url}",
            text=f"{server.model}, KV format {server.kv_dtype or 'not told'}",
            facts={"kv_bytes_per_token": Quantity(server.kv_bytes_per_token, "B")},
        )
        for name, server in (("baseline", baseline), ("candidate", candidate))
    ]
    steps = {
        "kv_quant_error": (
            ["the scales of the KV cache: calibrated, or all 1.0?", "the needle questions by depth"],
            ["calibrate the scales, or take a wider format (K first: it is the more sensitive half)"],
            ["the same comparison with the candidate's KV format set back, all else equal"],
        )
    }
    first, remedy, change = steps.get(
        cause,
        (
            ["that both servers run the same weights and the same template"],
            ["ask more questions (--items), or your own (--dataset)"],
            ["a comparison with more questions"],
        ),
    )
    return Finding(
        cause=cause,
        role="primary",
        confidence=confidence,  # type: ignore[arg-type]
        symptom="quality_drop" if cause == "kv_quant_error" else None,
        why=why,
        evidence=sides,
        check_first=first,
        remedy=remedy,
        would_change_my_mind=change,
    )
