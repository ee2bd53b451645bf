"""All dialects, in the order in which a page is held against them."""

from __future__ import annotations

from kvprobe.observe.dialects.others import DYNAMO, LLAMA_CPP, LMDEPLOY, SGLANG, TGI, TRITON, TRTLLM
from kvprobe.observe.dialects.reference import REFERENCE
from kvprobe.observe.dialects.vllm import VLLM

DIALECTS = (
    # First: with --vllm-metric-names the reference server shows its numbers a second time.
    REFERENCE,
    VLLM,
    SGLANG,
    LLAMA_CPP,
    LMDEPLOY,
    TGI,
    TRTLLM,
    TRITON,
    # Last: its workers pass their engine's own metrics through, which say more.
    DYNAMO,
)

CANONICAL = tuple(dict.fromkeys(series.canonical for dialect in DIALECTS for series in dialect.series))
"""Every canonical series; histograms stand here without `_sum`, `_count` and `_bucket`."""

NO_METRICS = {
    "transformers": "`transformers serve` has no /metrics route: only /health",
    "ollama": "Ollama exports no metrics; only the fields of each response tell anything",
}
"""Engines that export nothing (as of transformers 5.24 and Ollama in November 2026)."""
