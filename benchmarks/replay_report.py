"""`reports/replay_accuracy.md` has four parts, each written by its own command: one leaves the others be."""

from __future__ import annotations

from pathlib import Path

REPORT = Path(__file__).resolve().parents[1] / "reports" / "replay_accuracy.md"
TITLE = "# How near `kvprobe replay` is to servers that serve"
PARTS = (
    "The bundled server's engine, in process",
    "The bundled server, over HTTP",
    "vLLM 0.32 on a CPU, counts",
    "vLLM 0.32 on a CPU, times",
)
IN_PROCESS, OVER_HTTP, VLLM, VLLM_HTTP = PARTS


def put(part: str, lines: list[str]) -> None:
    """Write one part of the report; parts that are there already stay as they are."""
    have = _parts(REPORT.read_text()) if REPORT.exists() else {}
    have[part] = "\n".join(lines).strip()
    text = [TITLE, *(f"## {name}\n\n{have[name]}" for name in PARTS if name in have)]
    REPORT.write_text("\n\n".join(text) + "\n")


def _parts(text: str) -> dict[str, str]:
    found = {}
    for piece in text.split("\n## ")[1:]:
        name, _, body = piece.partition("\n")
        found[name.strip()] = body.strip()
    return found
