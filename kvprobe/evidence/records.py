"""One request as the client lived it.

All instants are CLOCK_MONOTONIC nanoseconds (`time.monotonic_ns()`) of the machine that sent the
request; null means "did not happen", never 0. Definitions follow docs/measuring.md.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

FailureKind = Literal[
    "connect",
    "dns",
    "tls",
    "status",
    "throttled",
    "timeout_first",
    "timeout_gap",
    "timeout_total",
    "in_band_error",
    "reset_before_headers",
    "reset_mid_stream",
    "truncated",
    "empty_stream",
    "auth",
    "redirect_refused",
    "decode",
    "protocol_error",
    "event_too_large",
    "client_fd",
    "cancelled_at_end",
]

CANCELLED = "cancelled_by_client"
"""Finish reason of a request that the workload gave up in the middle. It is no failure: its first token
counts, but it has no end-to-end time, and the server sent no usage for it."""

FAILURE_KINDS: tuple[str, ...] = get_args(FailureKind)


class RequestRecord(msgspec.Struct, kw_only=True):
    """A row of `requests.parquet`.

    The first block are the contract's columns, the second block is evidence for the validity
    checks and for rebuilding the prompt (`plan_index` counts the requests of the workload's
    plan; the prompt is a pure function of workload, calibration and this index).
    """

    request_id: str
    kind: str
    session: str | None = None
    turn: int | None = None
    intended_ns: int
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_chunk_ns: int | None = None
    first_token_ns: int | None = None
    first_visible_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    gaps_ns: list[int] = msgspec.field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    asked_prompt_tokens: int | None = None
    asked_completion_tokens: int | None = None
    prefix_id: str | None = None
    failure: FailureKind | None = None
    failure_detail: str | None = None
    status_code: int | None = None
    finish_reason: str | None = None
    worker: str = "0"
    warmup: bool = False
    server_request_id: str | None = None

    plan_index: int
    content_chunks: int = 0
    """Chunks that carried text (content, reasoning or tool text), partial streams included."""
    receives: int = 0
    """Times the socket handed over bytes of this response."""
    shared_receive_chunks: int = 0
    """Content chunks that arrived in a receive together with an earlier content chunk."""
    retained_text: str | None = None
    """First characters of the answer, kept for a few requests only; hostile text."""


class OpenedRequest(msgspec.Struct, kw_only=True):
    """Spooled when a request is sent, so that a killed run knows what was in flight."""

    request_id: str
    plan_index: int
    intended_ns: int
    sent_ns: int
    warmup: bool = False
    worker: str = "0"


class WaitingRequest(msgspec.Struct, kw_only=True):
    """One request under way that has already waited for long; its stamps are the worker's own."""

    request_id: str
    intended_ns: int
    sent_ns: int
    first_token: bool = False
    """Whether its first token has come."""
    warmup: bool = False


class Waiting(msgspec.Struct, kw_only=True):
    """Spooled while requests wait for longer than an abort rule allows: all of them, as of `t_ns`.

    For whoever reads the spool as it grows; the rows say the same once the requests have ended.
    """

    worker: str
    t_ns: int
    requests: list[WaitingRequest]
