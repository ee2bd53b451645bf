"""One analysis of prompts: the tree, the ceilings, the steps from what is shared to what was got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvprobe.load.job import PlannedRequest
from kvprobe.load.prompt_layout import analyse_prompts
from kvprobe.prefixes import ceilings
from kvprobe.prefixes.ceilings import Ceiling, Conditions, Step
from kvprobe.prefixes.rows import Rows, Sent, rows_of
from kvprobe.prefixes.tree import Node, prefix_tree

BYTES_PER_TOKEN = 4.0
"""Assumed where no answer's usage tells: English text under current tokenizers."""

LAYOUT_TIMES, LAYOUT_MORE_TOKENS = 4, 1_024
"""What stands behind a prompt's text (images) is taken in up to this size beside the text's own."""


class PrefixAnalysis(msgspec.Struct, kw_only=True):
    """Hit rates are ratios of the prompt tokens; token numbers are exact unless `estimated`."""

    prompts: int
    analysed: int
    models: int = 1
    """Different models named: each has a cache of its own, and prompts share within one only."""
    prompt_tokens: int
    estimated: bool
    tokens_from: str
    tree: list[Node]
    ceilings: list[Ceiling]
    steps: list[Step]
    got: float | None
    got_reason: str | None
    pool_needed_tokens: list[int] | None
    """For 5, 10 … 100 % of the reuse; null without reuse."""
    distinct_tokens: int
    """What a cache would hold that dropped nothing: the working set of all these prompts."""
    pool_tokens: int | None = None
    """The pool that was assumed; null when it is not known."""
    layout: dict[str, Any] | None = None
    """Where prompts part although they share content (see `kvprobe.load.prompt_layout`)."""

    @property
    def reachable(self) -> float:
        """The hit rate after the last step: what the engine could have served."""
        return self.steps[-1].hit_rate


def analyse(
    sent: Sequence[Sent],
    known: Conditions,
    *,
    tokens_of: Callable[[str], int] | None = None,
    template_tokens: int = 0,
    with_layout: bool = True,
    not_given: int = 0,
) -> PrefixAnalysis:
    """`tokens_of` counts a text exactly; without it sizes are scaled to the answers' usage, or assumed."""
    estimated = tokens_of is None
    ratio, how = _bytes_per_token(sent)
    count = tokens_of or _counter(ratio)
    rows = rows_of(list(sent), count, template_tokens, estimated=estimated)
    told = analysed(rows, known, "the tokenizer" if not estimated else how, not_given)
    if with_layout:
        told.layout = _layout(rows, known.block_tokens, template_tokens, count)
    return told


def analysed(rows: Rows, known: Conditions, tokens_from: str, not_given: int = 0) -> PrefixAnalysis:
    """All but the layout. `not_given` prompts are counted, and were not even made into rows."""
    share = ceilings.got(rows)
    return PrefixAnalysis(
        prompts=len(rows.rows) + rows.left_out + not_given,
        analysed=len(rows.rows),
        models=len({item.model for item in rows.sent}),
        prompt_tokens=rows.tokens(sum(map(len, rows.rows))),
        estimated=rows.estimated,
        tokens_from=tokens_from,
        tree=prefix_tree(rows),
        ceilings=ceilings.single_ceilings(rows),
        steps=ceilings.steps(rows, known),
        got=share,
        got_reason=None if share is not None else "no answer states cached tokens",
        pool_needed_tokens=ceilings.pool_needed(rows),
        distinct_tokens=ceilings.distinct_tokens(rows),
        pool_tokens=known.pool_tokens,
    )


def _bytes_per_token(sent: Sequence[Sent]) -> tuple[float, str]:
    known = [(len(i.text.encode("utf-8", "replace")), i.tokens) for i in sent[:2_000] if i.tokens]
    tokens = sum(n for _, n in known)
    if not tokens:
        return BYTES_PER_TOKEN, f"assumed: {BYTES_PER_TOKEN:g} bytes a token"
    return sum(b for b, _ in known) / tokens, "scaled to the usage of the answers"


def _counter(bytes_per_token: float) -> Callable[[str], int]:
    per = min(max(bytes_per_token, 0.5), 16.0)
    return lambda text: max(1, round(len(text.encode("utf-8", "replace")) / per))


def _layout(
    rows: Rows, block: int | None, template_tokens: int, tokens_of: Callable[[str], int]
) -> dict[str, Any] | None:
    sizes = [rows.tokens(len(row)) for row in rows.rows]
    planned = [
        PlannedRequest(
            index=number,
            kind="log",
            prompt=item.text,
            asked_prompt_tokens=min(item.tokens or own, LAYOUT_TIMES * own + LAYOUT_MORE_TOKENS),
            asked_completion_tokens=0,
            warmup=item.warmup,
        )
        for number, (item, own) in enumerate(zip(rows.sent, sizes, strict=True))
    ]
    facts = analyse_prompts(planned, tokens_of, block, template_tokens)
    return facts[0].value if facts else None
