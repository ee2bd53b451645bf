"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# Read when triton is first imported, by whoever does it (transformers may). Kernels then run on a CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Hypothesis's deadline of 200 ms an example says more about a busy machine than about the code.
settings.register_profile("kvprobe", deadline=None)
settings.load_profile("kvprobe")
