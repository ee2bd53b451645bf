"""From paired answers to a verdict: a loss that is shown, a loss that is excluded, or too few questions.

Only right and wrong answers show a loss. That texts differ does not: a model that answers nothing right
flips under the smallest change, and its texts say nothing of quality. Log probabilities can show damage
without right answers, where a server gives them: the same tokens in the same text, far apart. What a
server did not answer shows nothing: a server that died has lost no quality.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.quality.divergence import Divergence
from kvprobe.quality.model import Pass, Test, Verdict
from kvprobe.summary.units import plural

ALPHA = 0.05
"""Over all passes together (Bonferroni)."""
MIN_RIGHT = 10
"""Questions that the baseline answers right: with fewer there is nothing that could get worse."""
MAX_UNPAIRED = 0.05
"""Share of the questions that one side alone may leave unanswered: beyond it the comparison is INVALID."""
DAMAGE_NATS = 0.25
"""Mean |difference| of log probabilities that is damage: good 8-bit caches stay below a tenth of it
(llama.cpp's q8_0: KL divergence 0.0007 to 0.0016 nats), broken ones reach whole nats."""
TIMES_NOISE = 5.0


def judge(passes: Sequence[Pass], noise: Divergence, margin: float) -> tuple[Verdict, str]:
    """The verdict with its effect size in a sentence."""
    if reasons := invalid(passes):
        return "n_too_small", f"not judged: {reasons[0]}"
    for found in passes:
        if (shown := _worst(found, ALPHA / len(passes))) is not None:
            return "loss", _loss_text(shown, found)
    for found in passes:
        if _far_apart(found.divergence, noise):
            return "loss", _divergence_text(found.divergence)
    return _no_loss(passes, margin)


def invalid(passes: Sequence[Pass]) -> list[str]:
    """Why nothing can be judged: one side left many questions unanswered that the other side answered."""
    out = []
    for found in passes:
        asked = _asked(found)
        for name, alone, why in zip(
            ("baseline", "candidate"), found.unpaired, found.unanswered_why, strict=True
        ):
            if alone > MAX_UNPAIRED * asked:
                when = " with the pool held nearly full" if found.pressure else ""
                out.append(
                    f"the {name} left {alone} of {plural(asked, 'question')}{when} unanswered that the other "
                    f"side answered ({why})"
                )
    return out


def _asked(found: Pass) -> int:
    return _together(found).n + sum(found.unanswered) - (found.unanswered[0] - found.unpaired[0])


def _together(found: Pass) -> Test:
    return next(t for t in found.tests if t.kind == "all")


def _worst(found: Pass, alpha: float) -> Test | None:
    """The test that shows a loss: all questions together first, else one kind after Holm's correction."""
    together = _together(found)
    kinds = sorted((t for t in found.tests[1:]), key=lambda t: t.p_adjusted or 1.0)
    if _significant(together.p, together, alpha):
        return together
    return next((t for t in kinds if _significant(t.p_adjusted, t, alpha)), None)


def _significant(p: float | None, test: Test, alpha: float) -> bool:
    return p is not None and p < alpha and (test.difference or 0.0) < 0.0


def _far_apart(found: Divergence, noise: Divergence) -> bool:
    interval = found.logprob_difference_ci
    floor = noise.logprob_difference or 0.0
    return interval is not None and interval[0] > max(DAMAGE_NATS, TIMES_NOISE * floor)


def _loss_text(test: Test, found: Pass) -> str:
    what = "all questions" if test.kind == "all" else f"the {test.kind} questions"
    when = " with the pool held nearly full" if found.pressure else ""
    p = test.p if test.kind == "all" else test.p_adjusted
    lo, hi = test.difference_ci or (0.0, 0.0)
    return (
        f"the candidate answers {_points(test.difference or 0.0)} of {what} right against the baseline"
        f"{when}: {test.right_candidate} of {test.n} against {test.right_baseline} "
        f"[{100 * lo:+.0f}, {100 * hi:+.0f} points], p = {p:.2g} (McNemar, paired)"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.0f} points"


def _divergence_text(found: Divergence) -> str:
    lo, hi = found.logprob_difference_ci or (0.0, 0.0)
    return (
        f"the same tokens in the same text have log probabilities {found.logprob_difference:.2f} nats apart "
        f"[{lo:.2f}, {hi:.2f}] over {found.logprob_tokens:,} tokens: far more than rounding"
    )


def _no_loss(passes: Sequence[Pass], margin: float) -> tuple[Verdict, str]:
    tests = [_together(found) for found in passes]
    if not min(t.n for t in tests):
        return "n_too_small", "n too small: no question was answered by both"
    # A question that one side alone left is counted as lost here: what it hid is not known.
    lost = [sum(found.unpaired) / _asked(found) for found in passes]
    lows = [(t.difference_ci or (-1.0, 1.0))[0] - share for t, share in zip(tests, lost, strict=True)]
    weakest, lo = min(zip(tests, lows, strict=True), key=lambda pair: pair[1])
    if min(t.right_baseline for t in tests) < MIN_RIGHT:
        fewest = min(tests, key=lambda t: t.right_baseline)
        why = (
            f"n too small: the baseline itself answers {fewest.right_baseline} of {fewest.n} right, and a "
            "loss needs answers that could get worse; ask an instruction-tuned model, or give --dataset"
        )
        return "n_too_small", why
    low, high = weakest.difference_ci or (-1.0, 1.0)
    told = (
        f"{_points(weakest.difference or 0.0)} [{100 * low:+.0f}, {100 * high:+.0f}] over {weakest.n} "
        "questions"
    )
    if lo <= -margin:
        return "n_too_small", f"n too small: {told}; a loss of {100 * margin:.0f} points is not excluded"
    return "no_loss_shown", f"no loss shown: {told}; a loss of {100 * margin:.0f} points is excluded"
