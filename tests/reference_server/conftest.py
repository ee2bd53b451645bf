from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.reference_server.server_process import ServerProcess


@pytest.fixture(scope="package")
def server() -> Iterator[ServerProcess]:
    """A server with a roomy pool and the integrity check on."""
    with ServerProcess("--kv-memory", "64MiB", "--max-model-len", "4096") as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made
