"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# Hypothesis's deadline of 200 ms an example says more about a busy machine than about the code.
settings.register_profile("kvprobe", deadline=None)
settings.load_profile("kvprobe")
