"""llhttp's parser for one exchange: interim answers skipped, body pieces queued, excess cut off."""

from __future__ import annotations

from geventhttpclient.response import HTTPParseError, HTTPResponse


class ExcessData(HTTPParseError):  # type: ignore[misc]
    """Bytes came after the end of the answer that was asked for."""


class ResponseParser(HTTPResponse):  # type: ignore[misc]
    """Parses one final answer; body pieces are queued (`body`), not joined.

    What a server sends beyond the end that it declared (too small a Content-Length, an answer that
    nobody asked for) is no part of the answer: it is dropped, and the connection is not kept.
    """

    def __init__(self) -> None:
        super().__init__("POST")
        self.body: list[bytes] = []
        self._final_status: int | None = None
        self._ended = False
        self._excess = False

    @property
    def head_complete(self) -> bool:
        """The head of the final answer is there (an interim 1xx is not one)."""
        return self._final_status is not None

    @property
    def status_code(self) -> int:
        """Status of the final answer; of an interim one until that is there."""
        return self._final_status or int(self.get_code())

    def header(self, name: str) -> str | None:
        """A header's value; the first where it was sent more than once."""
        value: str | list[str] | None = self.get(name)
        return value[0] if isinstance(value, list) else value

    def feed(self, data: str | bytes) -> None:
        """Raises HTTPParseError for bytes that break the answer itself."""
        try:
            super().feed(data)
        except HTTPParseError:
            if not self._ended:
                raise
            self.message_complete = self._excess = True

    def should_close(self) -> bool:
        """Whether the connection must not be used for another request."""
        return self._excess or bool(super().should_close())

    def _on_headers_complete(self) -> int | bool | None:
        skip_body: int | bool | None = super()._on_headers_complete()
        if self.get_code() >= 200:
            self._final_status = int(self.get_code())
        return skip_body

    def _on_message_begin(self) -> None:
        if self._ended:
            raise ExcessData("bytes after the end of the answer")
        super()._on_message_begin()

    def _on_message_complete(self) -> None:
        super()._on_message_complete()
        self._ended = self._final_status is not None

    def _on_body(self, buf: bytes | bytearray) -> None:
        self.body.append(bytes(buf))
