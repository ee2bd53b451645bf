"""What a fuzzer makes of the server's own description: never a 5xx, always OpenAI's error form."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from reference_server.openapi import document
from tests.reference_server.server_process import ServerProcess

ASKED = [
    (method, path, mode)
    for path, methods in document()["paths"].items()
    for method in methods
    for mode in GenerationMode
    # A request without parameters has nothing to get wrong.
    if method == "post" or mode is GenerationMode.POSITIVE
]


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[ServerProcess]:
    """A short context, so that what is valid is soon done; a small pool, so that some of it queues."""
    with ServerProcess("--kv-memory", "1MiB", "--max-model-len", "64") as server:
        yield server


@pytest.mark.parametrize(("method", "path", "mode"), ASKED)
def test_no_request_makes_it_fail(
    fuzzed: ServerProcess, method: str, path: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(document())
    schema.config.update(base_url=fuzzed.url)
    operation = schema[path][method.upper()]
    count = 20 if method == "post" else 3

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        reply = case.call(timeout=60)
        assert reply.status_code < 500, reply.text
        assert reply.status_code == 200 or "error" in reply.json()
        assert str(reply.status_code) in document()["paths"][path][method]["responses"]

    ask()


def test_it_is_served_and_alive_after_all_that(fuzzed: ServerProcess) -> None:
    assert httpx.get(fuzzed.url + "/openapi.json").json() == document()
    assert httpx.get(fuzzed.url + "/health").status_code == 200
    assert "Traceback" not in fuzzed.log()
