"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

# Read when triton is first imported, by whoever does it (transformers may). Kernels then run on a CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A job that was started in the background ignores Ctrl-C, and so would every program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis's deadline of 200 ms an example says more about a busy machine than about the code.
settings.register_profile("kvprobe", deadline=None)
settings.load_profile("kvprobe")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under `.ci/run`, which installs what tests need, a skip that asks for an installation fails."""
    report = yield
    if report.skipped and os.environ.get("KVPROBE_CI") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if reason.removeprefix("Skipped: ").startswith("install "):
            report.outcome = "failed"
            report.longrepr = f"skipped where nothing may be missing: {reason}"
    return report
