"""vLLM's KV pool: blocks (V0) or tokens (V1), and the concurrency that it prints beside or below.

V0 prints blocks and never their size, but the concurrency that follows is blocks x size / length, so the
size is told by the three numbers together.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, values_of

_BLOCKS: Final = re.compile(
    r"# (?P<device>GPU|cuda|CUDA|rocm|npu|hpu|cpu) blocks: (?P<blocks__blocks>\d{1,12}), "
    r"# CPU blocks: (?P<cpu_blocks__blocks>\d{1,12})"
)
_TOKENS: Final = re.compile(r"(?P<device>[A-Z]{2,4}) KV cache size: (?P<tokens__tokens>[\d,]{1,20}) tokens")
_CONCURRENCY: Final = re.compile(
    r"Maximum concurrency for (?P<max_model_len__tokens>[\d,]{1,20}) tokens per request: "
    r"(?P<concurrency__ratio>[\d.]{1,12})x"
)
_FOLLOWS = 4
_BLOCK_SIZES: Final = (1, 8, 16, 32, 64, 128, 256)
_AGREE: Final = 0.01


def _read(line: Line, around: Around) -> list[Event]:
    found = _BLOCKS.search(line.text) or _TOKENS.search(line.text)
    if found is None:
        return []
    values = values_of(found)
    texts = [line.text, *[following.text for following in around.after(_FOLLOWS)]]
    concurrency = next((c for c in map(_CONCURRENCY.search, texts) if c is not None), None)
    if concurrency is not None:
        values.update(values_of(concurrency))
    _settle_block_size(values)
    return [event_of(line, "pool_size", values, engine="vllm", phase="capture")]


def _settle_block_size(values: dict[str, Value]) -> None:
    """Of V0: the usual size that the three numbers fit, and with it the tokens."""
    blocks, times, length = (values.get(k) for k in ("blocks", "concurrency", "max_model_len"))
    if blocks is None or times is None or length is None or not blocks.value:
        return
    size = times.value * length.value / blocks.value
    usual = min(_BLOCK_SIZES, key=lambda b: abs(b - size))
    if abs(usual - size) <= _AGREE * usual:
        values["block_size"] = Value(usual, "tokens")
        values["tokens"] = Value(usual * blocks.value, "tokens")


READERS: Final = (
    Reader(name="vllm_pool", engine="vllm", anchors=(" blocks: ", "KV cache size: "), read=_read),
)
