"""What of a plan can be reused: what the workload means to share, and what its prompts do share."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Hashable, Iterator, Sequence

from kvprobe.load.job import PlannedRequest
from kvprobe.load.prompt_kinds import PromptKind
from kvprobe.load.prompt_texts import Texts
from kvprobe.load.token_view import DEFAULT_BLOCK_TOKENS, InfinitePrefixCache, TokenView

Rows = Iterator[tuple[PlannedRequest, Sequence[int]]]


def aimed_hit_rate(kind: PromptKind, first_index: int, block_size: int | None) -> float | None:
    """Share of prompt tokens that the plan means to be reused, over the requests that show it.

    Full blocks of the longest prefix that an earlier request brought, at most all tokens but the last.
    """
    requests = kind.aimed_at()
    if not requests:
        return 0.0
    block = block_size or DEFAULT_BLOCK_TOKENS
    seen: set[Hashable] = {name for name, _ in kind.brought_by_warmup()}
    reused = total = 0
    for number in range(requests):
        tokens, prefixes = kind.prefixes(number, first_index + number)
        total += tokens
        best = max((size for name, size in prefixes if name in seen), default=0)
        reused += min(best, tokens - 1) // block * block
        seen.update(name for name, _ in prefixes)
    return reused / total if total else None


def ceiling_hit_rate(rows: Rows, block_size: int | None, warmup: Container[int]) -> float | None:
    """What a block prefix cache of unlimited size could serve of these prompts in this order.

    Those of the warm-up (by their plan, or because `warmup` names them) fill the cache and are not
    counted. Null when nothing is counted.
    """
    block = block_size or DEFAULT_BLOCK_TOKENS
    cache: InfinitePrefixCache | None = None
    reused = total = 0
    for planned, tokens in rows:
        if cache is None:
            # Where sizes are assumed, a stand-in is not one token: blocks scale with them.
            cache = InfinitePrefixCache(max(round(block * len(tokens) / planned.asked_prompt_tokens), 1))
        hits = cache.admit(tokens)
        if not planned.warmup and planned.index not in warmup:
            reused += hits
            total += len(tokens)
    return reused / total if total else None


def token_rows(request: Callable[[int], PlannedRequest], order: Sequence[int], texts: Texts) -> Rows:
    """Requests with their stand-in tokens, template included (see `token_view`)."""
    view = TokenView(texts.count)
    for index in order:
        planned = request(index)
        yield planned, _row(planned, view, texts)


def _row(planned: PlannedRequest, view: TokenView, texts: Texts) -> array[int]:
    messages = planned.messages
    if messages is None:
        before = texts.template(system=False).before
        row = view.marker("before", before)
        row += view.text(planned.prompt or "")
        return row + view.marker("after", (texts.calibration.template_tokens or 0) - before)
    template = texts.template(system=messages[0]["role"] == "system")
    row = view.marker("before", template.before)
    earlier = None
    for message in messages:
        if earlier == "system":
            row += view.marker("between", template.between)
        elif earlier == "assistant":
            row += view.marker("again", template.again)
        elif earlier == "user":
            row += view.marker("after", template.answer)
        row += view.text(message["content"])
        earlier = message["role"]
    # What opens an answer is the same at the end of a prompt and, later, in its history.
    return row + view.marker("after", template.after)
