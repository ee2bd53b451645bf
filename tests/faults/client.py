"""Runs our real client against a fault."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kvprobe.evidence.records import RequestRecord
from kvprobe.load.connection import Connection, open_client
from kvprobe.load.job import PlannedRequest
from kvprobe.load.request_form import StreamSpec, Timeouts, request_head
from kvprobe.load.stream import run_request
from tests.faults.kit import Fault, serve

PATIENT = Timeouts(connect_s=5.0, first_token_s=5.0, gap_s=5.0, total_s=10.0)


def planned(index: int = 0, tokens: int = 8) -> PlannedRequest:
    """A small request."""
    return PlannedRequest(
        index=index,
        kind="distinct",
        messages=[{"role": "user", "content": "hello"}],
        asked_prompt_tokens=4,
        asked_completion_tokens=tokens,
    )


class Client:
    """One user: a connection that is kept from request to request."""

    def __init__(
        self, url: str, timeouts: Timeouts = PATIENT, *, insecure: bool = False, **spec: Any
    ) -> None:
        host = url.partition("://")[2]
        head = request_head(host, "/v1/chat/completions", None)
        self.connection = Connection(
            open_client(url, insecure=insecure, connect_timeout_s=timeouts.connect_s)
        )
        self._spec = StreamSpec(True, "fault", timeouts, head, **spec)
        self._index = 0

    def send(self, tokens: int = 8) -> RequestRecord:
        """One request."""
        self._index += 1
        record = run_request(
            self.connection,
            planned(self._index, tokens),
            self._spec,
            request_id=f"test-{self._index}",
            intended_ns=time.monotonic_ns(),
            retain_chars=200,
        )
        check_instants(record)
        return record


@contextlib.contextmanager
def client_of(url: str, timeouts: Timeouts = PATIENT, **options: Any) -> Iterator[Client]:
    """A client whose socket is closed at the end."""
    client = Client(url, timeouts, **options)
    try:
        yield client
    finally:
        client.connection.close()


def meet(fault: Fault, timeouts: Timeouts = PATIENT, *, tokens: int = 8, **options: Any) -> RequestRecord:
    """One request to a server that plays `fault`."""
    with serve(fault) as server, client_of(server.url, timeouts, **options) as client:
        return client.send(tokens)


def check_instants(record: RequestRecord) -> None:
    """Whatever happened, what did happen is in order, and TTFT is no gap."""
    order = [record.intended_ns, record.sent_ns, record.first_byte_ns, record.first_chunk_ns]
    order += [record.first_token_ns, record.last_token_ns, record.end_ns]
    happened = [instant for instant in order if instant is not None]
    assert happened == sorted(happened)
    assert record.end_ns is not None
    assert len(record.gaps_ns) == max(record.content_chunks - 1, 0)
    if record.first_token_ns is not None and record.last_token_ns is not None:
        assert record.first_token_ns + sum(record.gaps_ns) == record.last_token_ns
    assert (record.failure is None) == (record.failure_detail is None)
    assert len(record.failure_detail or "") <= 2200
