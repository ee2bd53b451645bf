"""Errors with a fixed meaning at the edge of the program."""

from __future__ import annotations

from collections.abc import Mapping


class ConfigError(Exception):
    """The command line or environment cannot be served; one line, exit code 2."""


class RequestError(Exception):
    """A request that is refused, in OpenAI's error form.

    `status` is the HTTP status, `kind` OpenAI's `type`, `param` the field at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        own_words: bool = False,
    ) -> None:
        """`own_words`: the message repeats nothing that a client sent, but for numbers."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
        self.param = param
        self.headers = dict(headers or {})
        self.own_words = own_words


KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    431: "HeaderTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class IntegrityError(AssertionError):
    """The pool's books do not balance: a defect of ours, found by the integrity check."""
