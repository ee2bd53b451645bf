"""The metrics server of tests/observe."""

from __future__ import annotations

from tests.observe.conftest import server as server
