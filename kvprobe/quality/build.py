"""From the answers of both sides to the numbers of one pass, and from passes to the whole document."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.diagnose.model import Diagnosis, Evidence, Finding, Quantity, Validity
from kvprobe.quality import statistics as stats
from kvprobe.quality.divergence import divergence
from kvprobe.quality.given import NOT_ASKED, Given
from kvprobe.quality.items import Item
from kvprobe.quality.judging import right, valid_json
from kvprobe.quality.model import Pass, Server, Test, Verdict


def one_pass(items: Sequence[Item], a: Sequence[Given], b: Sequence[Given], *, pressure: bool) -> Pass:
    """Tests are over the questions that both answered; the others are counted apart."""
    pairs = [(i, x, y) for i, x, y in zip(items, a, b, strict=True) if x.error is None and y.error is None]
    both = [i for i, _, _ in pairs]
    right_a, right_b = [right(i, x.text) for i, x, _ in pairs], [right(i, y.text) for i, _, y in pairs]
    tests = [_test("all", both, right_a, right_b, None)]
    tests += [_test(kind, both, right_a, right_b, kind) for kind in dict.fromkeys(i.kind for i in both)]
    _adjust(tests[1:])
    objects = [(x, y) for i, x, y in pairs if i.method == "json"]
    valid = sum(valid_json(x.text) for x, _ in objects), sum(valid_json(y.text) for _, y in objects)
    left = [[g.error for g in side if g.error is not None] for side in (a, b)]
    alone = len(items) - len(pairs)
    return Pass(
        pressure=pressure,
        tests=tests,
        divergence=divergence(a, b),
        json_valid=valid if objects else None,
        unanswered=(len(left[0]), len(left[1])),
        unpaired=(alone - len(left[1]), alone - len(left[0])),
        unanswered_why=(_first_reason(left[0]), _first_reason(left[1])),
    )


def _first_reason(errors: Sequence[str]) -> str | None:
    """What a question met, rather than that it was not asked any more."""
    return next((e for e in errors if not e.startswith(NOT_ASKED)), next(iter(errors), None))


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
        difference=found.difference if found.n else None,
        difference_ci=stats.difference_interval(found) if found.n else None,
        p=stats.mcnemar_p(found) if found.n else None,
        by_depth=depths,
    )


def _adjust(tests: Sequence[Test]) -> None:
    """Holm's step-down correction over the kinds (Holm 1979)."""
    worst = 0.0
    for place, test in enumerate(sorted(tests, key=lambda t: t.p or 0.0)):
        worst = max(worst, min(1.0, (test.p or 0.0) * (len(tests) - place)))
        test.p_adjusted = worst


LOW_FORMATS = ("int8", "fp8", "int4", "fp4", "nvfp4", "q8", "q5", "q4", "e4m3", "e5m2")


def diagnose(
    verdict: Verdict,
    summary: str,
    baseline: Server,
    candidate: Server,
    *,
    certain: bool,
    reasons: Sequence[str] = (),
) -> Diagnosis:
    """`kv_quant_error` where the formats differ and a loss is shown; a loss without that is `unknown`. With
    `reasons` the comparison is INVALID, and no cause is named."""
    found = _cause("n_too_small" if reasons else verdict, summary, baseline, candidate, certain=certain)
    found.validity = Validity(valid=not reasons, reasons=list(reasons))
    return found


def _cause(
    verdict: Verdict, summary: str, baseline: Server, candidate: Server, *, certain: bool
) -> Diagnosis:
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
    known, others = None not in formats, _other_differences(baseline, candidate)
    level = ("certain" if certain else "likely") if known and not others else "suspected"
    what = f"{formats[0]} against {formats[1]}" if known else "the KV formats are not told by the servers"
    what += f"; {' and '.join(others)} differ as well, which would explain it too" if others else ""
    why = f"KV precision damages the output ({what}): {summary}."
    found = _finding("kv_quant_error", level, why, baseline, candidate)
    return Diagnosis(primary="kv_quant_error", findings=[found])


def _other_differences(baseline: Server, candidate: Server) -> list[str]:
    """What else is not the same on both sides, as far as they tell."""
    out = ["the models' names"] if baseline.model != candidate.model else []
    engines = [(s.engine, s.engine_version) for s in (baseline, candidate)]
    if None not in (engines[0][0], engines[1][0]) and engines[0] != engines[1]:
        out.append("the engines")
    return out


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
