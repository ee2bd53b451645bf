"""Another process that takes a CUDA device's memory. Only the ailment `noisy-neighbour` starts it."""

from __future__ import annotations

import subprocess
import sys

_TAKE_ALL = """
import time, torch
held = []
size = 256 * 1024**2
while size >= 1024**2:
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        size //= 2
while True:
    time.sleep(60)
"""


class CudaNeighbour:
    """A real process; it ends with the server, whose stdin pipe it holds the other end of."""

    def __init__(self) -> None:
        script = (
            "import os, threading\n"
            "threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()\n" + _TAKE_ALL
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
