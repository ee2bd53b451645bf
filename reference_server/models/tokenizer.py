"""The byte-level tokenizer and its chat template.

Ids 0-255 are bytes; the ids after them are the marks of the chat template. There is nothing to
download, and every text has exactly one tokenisation: a prefix of text is a prefix of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

BOS, EOS, SYSTEM, USER, ASSISTANT, TOOL, END = range(256, 263)
VOCABULARY_SIZE = 264
"""A multiple of 8, for the matrix products."""

SPECIAL_TEXT = {
    BOS: "<|begin|>",
    EOS: "<|eos|>",
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
    TOOL: "<|tool|>",
    END: "<|end|>",
}
ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}


class ChatError(ValueError):
    """Messages that the chat template does not take; the text is for the client."""


class UnknownRoleError(ChatError):
    """A chat message has a role that the template does not know."""


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    vocabulary_size: int
    eos_tokens: frozenset[int]
    """Any of these ends a text."""
    hides_eos: bool
    """A request that ignores the end of sequence never gets such a token: each of its tokens shows."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of plain text, as `/v1/completions` feeds it."""

    def encode_chat(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool) -> list[int]:
        """Token ids of `(role, content)` messages under the chat template."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, marks included."""

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes that a generated token adds to the output; marks add none."""

    def sampleable(self) -> list[int] | None:
        """Ids that may be generated; None for all."""


class ByteTokenizer:
    """One token a byte."""

    vocabulary_size = VOCABULARY_SIZE
    eos_tokens = frozenset((EOS,))
    hides_eos = True

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [BOS, *_utf8(text)] if add_special_tokens else list(_utf8(text))

    def encode_chat(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool) -> list[int]:
        tokens = [BOS]
        for role, content in messages:
            mark = ROLES.get(role)
            if mark is None:
                raise UnknownRoleError(f"unknown role {role!r}; known: {', '.join(ROLES)}")
            tokens.append(mark)
            tokens.extend(_utf8(content))
            tokens.append(END)
        if add_generation_prompt:
            tokens.append(ASSISTANT)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        raw = b"".join(bytes([t]) if t < 256 else SPECIAL_TEXT.get(t, "").encode() for t in tokens)
        return raw.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def sampleable(self) -> list[int]:
        """Printable ASCII, newline and end of sequence.

        Random weights would otherwise emit bytes that are no UTF-8, and a client would not see
        them token by token. This way each token is one visible character.
        """
        return [ord("\n"), *range(32, 127), EOS]


def _utf8(text: str) -> bytes:
    # JSON may carry lone surrogates, which UTF-8 has no form for.
    return text.encode("utf-8", "replace")
