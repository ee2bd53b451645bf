"""Log probabilities of generated tokens: computed beside the sampling, told in OpenAI's two forms.

They are of the distribution that tokens are drawn from at temperature 1 and `top_p` 1: tokens that may not
come next are left out of it. Every generated token has an entry, one that ends the text too.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from typing import Any

import torch

from reference_server.models.tokenizer import Tokenizer

MOST = 20
"""Alternatives that may be asked for, as with OpenAI and by vLLM's default."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token that was chosen, in nats, with the likeliest ones at its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def of_choice(logits: torch.Tensor, token: int, alternatives: int) -> TokenLogprobs:
    """`logits` of one position, forbidden tokens at minus infinity; those are no alternatives."""
    values = torch.log_softmax(logits.double(), dim=-1)
    if alternatives:
        best, ids = values.topk(min(alternatives, len(values)))
        pairs = zip(ids.tolist(), best.tolist(), strict=True)
        top = tuple((i, v) for i, v in pairs if v != -torch.inf)
    else:
        top = ()
    return TokenLogprobs(token, float(values[token]), top)


class ChatLogprobs:
    """`choices[].logprobs` of a chat: `{"content": [{token, logprob, bytes, top_logprobs}]}`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def told(self, found: Sequences[TokenLogprobs]) -> dict[str, Any]:
        entries = []
        for each in found:
            top = [self._entry(token, value) for token, value in each.top]
            entries.append({**self._entry(each.token, each.logprob), "top_logprobs": top})
        return {"content": entries}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        data = token_data(self._tokenizer, token)
        return {"token": data.decode("utf-8", "replace"), "logprob": value, "bytes": list(data)}


class CompletionLogprobs:
    """`choices[].logprobs` of `/v1/completions`: lists side by side. Offsets go on from chunk to chunk."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def told(self, found: Sequences[TokenLogprobs]) -> dict[str, Any]:
        offsets = []
        texts = [self._text(each.token) for each in found]
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        tops = [
            {self._text(t): v for t, v in (*each.top, (each.token, each.logprob))} if each.top else None
            for each in found
        ]
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": tops if any(tops) else None,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        """Keys must differ where the tokens do: a part of a character is written as OpenAI does."""
        data = token_data(self._tokenizer, token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def token_data(tokenizer: Tokenizer, token: int) -> bytes:
    """What a token adds to a text; a mark, which adds nothing, by its name."""
    return tokenizer.token_bytes(token) or tokenizer.decode([token]).encode("utf-8", "replace")


Form = ChatLogprobs | CompletionLogprobs
