"""What only a GPU can show: parity with the CPU, capacity, decode and prefill against the hardware's limits.

Run by check.sh. Writes check.json and check.md after every part: an interrupted run leaves what it has.
`--device cpu` tries the check itself where there is no GPU; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.gpu.parts import backends_agree, capacity, out_of_memory, texts_agree
from tests.gpu.speed import speed

Part = Callable[[str], dict[str, Any]]
PARTS: dict[str, Part] = {
    "attention backends agree with a plain computation": backends_agree,
    "greedy texts agree with the CPU's": texts_agree,
    "requests at once in the same memory": capacity,
    "regions that the device has no memory for": out_of_memory,
    "speed of an 8B-shaped random model": speed,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0, 1 when a part failed, 2 when nothing could be checked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("no CUDA device: nothing was checked", file=sys.stderr)
        return 2
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_gpu else "none: a dry run on the CPU",
        "torch": torch.__version__,
        "parts": {},
    }
    return check(PARTS, options.device, results, options.out)


def check(parts: dict[str, Part], device: str, results: dict[str, Any], out: Path) -> int:
    """Every part, whatever became of the one before."""
    failed = False
    for name, part in parts.items():
        started = time.monotonic()
        try:
            outcome: dict[str, Any] = {"ok": True, "found": part(device)}
        except Exception as error:
            failed = True
            outcome = {"ok": False, "error": repr(error)[:500], "traceback": traceback.format_exc()[-3000:]}
        if device == "cuda":
            torch.cuda.empty_cache()
            # A share that a part has set is not the next one's.
            torch.cuda.set_per_process_memory_fraction(1.0)
        results["parts"][name] = {**outcome, "seconds": round(time.monotonic() - started, 1)}
        write(results, out)
        print(f"{'ok    ' if outcome['ok'] else 'FAILED'} {name}: {outcome.get('found') or outcome['error']}")
    return int(failed)


def write(results: dict[str, Any], out: Path) -> None:
    (out / "check.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [f"# GPU check: {results['device']}, torch {results['torch']}", ""]
    for name, part in results["parts"].items():
        lines.append(f"- {'ok' if part['ok'] else 'FAILED'} ({part['seconds']} s) {name}: "
                     f"`{json.dumps(part.get('found') or part['error'])}`")  # fmt: skip
    (out / "check.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
