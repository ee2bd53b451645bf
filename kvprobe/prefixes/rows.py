"""Prompts as a prefix cache sees them: rows of stand-in tokens, with what else decides about a hit."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvprobe.load.token_view import TokenView, split_pieces
from kvprobe.prefixes.sent import Sent as Sent


@dataclass(slots=True)
class Rows:
    """All prompts as rows. `scale` is tokens per stand-in: 1 where sizes are exact."""

    sent: list[Sent]
    rows: list[array[int]]
    scale: float
    view: TokenView
    lead: int
    """Stand-ins of the template before the text."""
    estimated: bool = False
    left_out: int = 0
    """Prompts beyond what is analysed."""
    starts: dict[tuple[tuple[str, ...], bool], list[int]] = field(default_factory=dict)
    """What `endless.common_starts` found, by its question."""

    def tokens(self, stand_ins: float) -> int:
        return round(stand_ins * self.scale)

    def text_at(self, number: int, position: int, before: int, after: int) -> tuple[str, str]:
        """The text around a position of a row: so many characters before it and after it (foreign text)."""
        pieces, at = split_pieces(self.sent[number].text), self.lead
        for index, piece in enumerate(pieces):
            size = len(self.view.piece(piece))
            if at + size > position:
                head = "".join(pieces[max(0, index - before) : index])
                return head[-before:], "".join(pieces[index : index + after])[:after]
            at += size
        return "".join(pieces[-before:])[-before:], ""


MAX_PROMPTS = 20_000
MAX_STAND_INS = 20_000_000


def rows_of(
    sent: list[Sent],
    tokens_of: Callable[[str], int],
    template_tokens: int,
    *,
    estimated: bool,
    max_prompts: int = MAX_PROMPTS,
    max_stand_ins: int = MAX_STAND_INS,
) -> Rows:
    """Rows of the first prompts, up to these bounds; what is left out is counted."""
    views: dict[str, TokenView] = {}
    rows: list[array[int]] = []
    total = known = stood = 0
    for item in sent[:max_prompts]:
        view = views.setdefault(item.model, TokenView(tokens_of))
        row = view.marker("before", template_tokens)
        row.extend(view.text(item.text))
        total += len(row)
        if total > max_stand_ins:
            break
        rows.append(row)
        if item.tokens is not None:
            known, stood = known + item.tokens, stood + len(row)
    scale = known / stood if estimated and known else 1.0
    kept = sent[: len(rows)]
    _part_models(kept, rows, views)
    view = next(iter(views.values()), TokenView(tokens_of))
    return Rows(kept, rows, scale, view, template_tokens, estimated, left_out=len(sent) - len(rows))


def _part_models(sent: list[Sent], rows: list[array[int]], views: dict[str, TokenView]) -> None:
    """The same text is nothing in common for two models: each gets stand-ins of its own."""
    begins, begin = {}, 0
    for model, view in views.items():
        begins[model] = begin
        begin += view.stand_ins
    for item, row in zip(sent, rows, strict=True):
        if begins[item.model]:
            np.frombuffer(row, dtype=np.int64)[:] += begins[item.model]
