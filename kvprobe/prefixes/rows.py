"""Prompts as a prefix cache sees them: rows of stand-in tokens, with what else decides about a hit."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from kvprobe.load.token_view import TokenView, split_pieces


@dataclass(frozen=True, slots=True)
class Sent:
    """One prompt, in the order in which it was sent.

    `key` is what the engine adds to its cache key (a salt, an adapter, another model): prompts with other
    keys never share. `bypass` names a request option that leaves the cache out altogether.
    """

    text: str
    tokens: int | None = None
    """As the server counted it; null where it did not say."""
    cached: int | None = None
    key: tuple[str, ...] = ()
    bypass: str | None = None
    replica: str | None = None
    line: int | None = None
    warmup: bool = False


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
    view = TokenView(tokens_of)
    rows: list[array[int]] = []
    total = known = stood = 0
    for item in sent[:max_prompts]:
        row = view.marker("before", template_tokens)
        row.extend(view.text(item.text))
        total += len(row)
        if total > max_stand_ins:
            break
        rows.append(row)
        if item.tokens is not None:
            known, stood = known + item.tokens, stood + len(row)
    scale = known / stood if estimated and stood else 1.0
    kept = sent[: len(rows)]
    return Rows(kept, rows, scale, view, template_tokens, estimated, left_out=len(sent) - len(rows))
