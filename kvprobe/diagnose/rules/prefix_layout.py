"""A changing segment in front of a body that prompts share: nothing behind it can be reused."""

from __future__ import annotations

from kvprobe.diagnose.contrast import contrast
from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.base import Candidate, evidence
from kvprobe.diagnose.rules.prefix_facts import (
    FAR_BELOW,
    MOVING_GAINS,
    candidate,
    ceiling_of,
    got_of,
    hit_evidence,
)
from kvprobe.diagnose.view import View
from kvprobe.summary.layout import PromptLayout
from kvprobe.summary.units import percent, seconds, whole

CHARS_BEFORE, CHARS_AFTER = 28, 12


def layout_unstable(view: View) -> Candidate | None:
    """Needs: a changing segment in front of a body that prompts share. Refuted by hits on the body."""
    layout, got, ceiling = view.summary.layout, got_of(view), ceiling_of(view)
    moved = layout.ceiling_if_moved
    if moved is None or layout.diverge_token is None or moved - ceiling < MOVING_GAINS:
        return None
    if got is not None and got > FAR_BELOW * moved:
        return None
    shared = (
        f" in front of {whole(layout.shared_body_tokens)} shared tokens" if layout.shared_body_tokens else ""
    )
    seen = "not exported by the server" if got is None else percent(got)
    why = (
        f"Prompts part at {_place(view)}{_quoted(layout)}{shared}: "
        f"{percent(ceiling)} of the prompt tokens can be reused (got: {seen}); with the changing part moved "
        f"behind the shared one it would be {percent(moved)}."
    )
    told = [
        evidence(
            layout.source,
            f"the first token that differs is {_number(view)}",
            diverge_token=(layout.diverge_token, "tokens"),
            changing_tokens=(layout.changing_tokens, "tokens"),
            shared_body_tokens=(layout.shared_body_tokens, "tokens"),
            ceiling_as_sent=(ceiling, "ratio"),
            ceiling_if_moved=(moved, "ratio"),
        ),
        *(
            evidence(layout.source, f'prompt {"ab"[i]}: "{layout.diverge_before or ""}" then "{t}"')
            for i, t in enumerate(layout.diverge_texts[:2])
        ),
        hit_evidence(view),
        _saving(view),
    ]
    return candidate(
        "prefix_layout_unstable",
        "likely" if got is None else "certain",
        why,
        told,
        check_first=[f"what writes the text at {_place(view)} of the prompt (a time, an id, a counter?)"],
        remedy=["put what changes from request to request behind what all requests share, or leave it out"],
        would_change_my_mind=["prompts whose token ids are equal up to the end of the shared part"],
    )


def _estimated(view: View) -> bool:
    """Whether token numbers rest on an assumed tokenizer or on a template that was not measured."""
    known = view.fact("calibration")
    if not isinstance(known, dict):
        return False
    return known.get("source") == "assumed" or known.get("template_prefix_tokens", 0) is None


def _place(view: View) -> str:
    """`token 33`; `about token 33` where nobody could be asked for the tokens."""
    return f"{'about ' if _estimated(view) else ''}token {view.summary.layout.diverge_token}"


def _number(view: View) -> str:
    index = view.summary.layout.diverge_token
    return f"about number {index} (estimated: no tokenizer to ask)" if _estimated(view) else f"number {index}"


def _quoted(layout: PromptLayout) -> str:
    """The text before the first character that differs, and both texts behind it, short enough for
    a sentence. What was cut off is marked."""
    if len(layout.diverge_texts) < 2:
        return ""
    one, another = (_head(text) for text in layout.diverge_texts[:2])
    return f' (after "{_tail(layout.diverge_before or "")}" comes "{one}" in one, "{another}" in another)'


def _head(text: str) -> str:
    return text if len(text) <= CHARS_AFTER else f"{text[:CHARS_AFTER]}..."


def _tail(text: str) -> str:
    return text if len(text) <= CHARS_BEFORE else f"...{text[-CHARS_BEFORE:]}"


def _saving(view: View) -> Evidence:
    """What a hit would save in TTFT, if this run shows it."""
    found = contrast(view.ok, view.run.records)
    ratio = found.ttft_ratio if found is not None else None
    cold, warm = (found.ttft_cold, found.ttft_warm) if found is not None else (None, None)
    if ratio is None or cold is None or warm is None or cold.value is None or warm.value is None:
        return _saving_in_tokens(view)
    return evidence(
        "ttft_s",
        f"requests of this run that hit had a median TTFT of {seconds(warm.value)}, "
        f"others {seconds(cold.value)}",
        ttft_hit_p50=(warm.value, "s"),
        ttft_miss_p50=(cold.value, "s"),
    )


def _saving_in_tokens(view: View) -> Evidence:
    """No request of this run hit: the prefill that a hit would skip is known, the time is not."""
    body, prompt = view.summary.layout.shared_body_tokens, view.summary.metrics.prompt_tokens.got_median
    skipped = (
        f"a hit would skip the prefill of {whole(body)} of {whole(prompt)} tokens; "
        if body and prompt
        else ""
    )
    return evidence(
        "ttft_s",
        f"{skipped}what that saves in TTFT is not known: too few requests of this run hit the cache",
        shared_body_tokens=(body, "tokens"),
        prompt_tokens=(prompt, "tokens"),
    )
