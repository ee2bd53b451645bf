"""Token ids to text, as they come, with stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from reference_server.models.tokenizer import Tokenizer


class TextStream:
    """The text of one request. Only whole characters leave it, and never a part of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._hold = max((len(stop) for stop in self._stops), default=1) - 1
        self._pending = ""
        self.stopped_by: str | None = None

    def push(self, token: int, *, may_stop: bool = True) -> str:
        """Text that became sendable by this token; empty when it ends inside a character.

        Where it may not stop yet, stop strings are text like any other, as in vLLM.
        """
        self._pending += self._decoder.decode(self._tokenizer.token_bytes(token))
        if not self._stops or not may_stop:
            sendable, self._pending = self._pending, ""
            return sendable
        return self._release_before_stop()

    def finish(self) -> str:
        """What was held back, once no more tokens come."""
        if self.stopped_by is not None:
            return ""
        rest = self._pending + self._decoder.decode(b"", final=True)
        self._pending = ""
        return rest

    def _release_before_stop(self) -> str:
        found = [(at, stop) for stop in self._stops if (at := self._pending.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            sendable, self._pending = self._pending[:at], ""
            return sendable
        cut = max(len(self._pending) - self._hold, 0)
        sendable, self._pending = self._pending[:cut], self._pending[cut:]
        return sendable
