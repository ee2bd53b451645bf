"""Ollama's own logfmt lines; its runner writes llama.cpp's, which `llamacpp` reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, size_bytes, table_reader

ENGINE = "ollama"

_ROWS = (
    signature(
        "engine_start",
        "Listening on ",
        r"Listening on \S{1,60} \(version (?P<version__text>[\w.+-]{1,40})\)",
        engine_name=ENGINE,
    ),
    signature(
        "truncated",
        "truncating input prompt",
        r"limit=(?P<limit__tokens>\d+) prompt=(?P<input__tokens>\d+)"
        r"(?: keep=(?P<kept__tokens>\d+))?(?: new=(?P<new__tokens>\d+))?",
        phase="serve",
    ),
    signature(
        "truncated",
        "input exceeds context length",
        r"prompt=(?P<input__tokens>\d+) limit=(?P<limit__tokens>\d+)",
        phase="serve",
    ),
    signature(
        "truncated",
        "truncating input messages which exceed context length",
        r"truncated=(?P<messages__count>\d+)",
        phase="serve",
    ),
    signature(
        "truncated",
        "context limit hit - shifting",
        r"limit=(?P<limit__tokens>\d+) input=(?P<input__tokens>\d+) keep=(?P<kept__tokens>\d+)"
        r" discard=(?P<dropped__tokens>\d+)",
        phase="serve",
    ),
    signature(
        "context_clamped",
        "requested context size too large for model",
        r"num_ctx=(?P<input__tokens>\d+).{0,30}?n_ctx_train=(?P<limit__tokens>\d+)",
    ),
    signature(
        "host_too_small",
        "model requires more system memory",
        r"requires more system memory(?: than is (?:currently )?available)? "
        r"\(?(?P<asked__size>[\d.]+ ?\w{1,5})\)? than is available "
        r"\(?(?P<free__size>[\d.]+ ?[KMGT]?i?B)",
        phase="load",
    ),
    signature(
        "host_too_small",
        "model request too large for system",
        r'requested="?(?P<asked__size>[\d.]+ ?[KMGT]?i?B?)"? '
        r'available="?(?P<free__size>[\d.]+ ?[KMGT]?i?B?)\b'
        r'(?:"? total="?(?P<total__size>[\d.]+ ?[KMGT]?i?B))?',
        phase="load",
    ),
    signature(
        "host_memory",
        'msg="system memory"',
        r'total="(?P<total__size>[^"]{3,14})" free="(?P<free__size>[^"]{3,14})"(?: '
        r'free_swap="(?P<swap__size>[^"]{2,14})")?',
    ),
    signature(
        "no_layer_fits",
        "insufficient VRAM to load any model layers",
        r"insufficient VRAM",
    ),
    signature(
        "runner_died",
        "llama runner process has terminated",
        r"llama runner process has terminated: (?P<reason__text>[^\"]{1,200})",
    ),
    signature(
        "runner_died",
        "llama runner process no longer running",
        r"llama runner process no longer running: (?P<reason__text>[^\"]{1,60})",
    ),
    signature("runner_died", "llama runner terminated", r'error="(?P<reason__text>[^"]{1,60})"'),
    signature(
        "layout_failed",
        "memory layout cannot be allocated",
        r"memory layout cannot be allocated(?: with num_gpu = (?P<layers_on_gpu__count>\d+))?",
        phase="load",
    ),
    signature("vram_not_recovered", "gpu VRAM usage didn't recover", r"gpu VRAM usage didn't recover"),
    signature(
        "refused", "maximum pending requests exceeded", r"maximum pending", phase="serve", reason="queue"
    ),
    signature("phase", "waiting for llama runner to start", r"waiting for llama runner", phase="load"),
    signature("serving", "llama runner started in", r"llama runner started in", phase="serve"),
)

_PAIR = re.compile(r'([a-z_.]{3,40})=("[^"]{0,400}"|\S{1,80})')
_OFFLOAD: dict[str, tuple[str, str]] = {
    "memory.required.full": ("required", "B"),
    "memory.required.partial": ("required_partial", "B"),
    "memory.required.kv": ("kv", "B"),
    "memory.weights.total": ("weights", "B"),
    "memory.graph.full": ("graph", "B"),
    "layers.model": ("layers", "count"),
    "layers.offload": ("layers_on_gpu", "count"),
}


def _offload(line: Line, around: Around) -> Iterable[Event]:
    """`msg=offload`: what the model needs and what the devices have free."""
    pairs = {k: v.strip('"') for k, v in _PAIR.findall(line.text)}
    values: dict[str, Value] = {}
    for key, (name, unit) in _OFFLOAD.items():
        text = pairs.get(key, "")
        number = size_bytes(text) if unit == "B" else (int(text) if text.isdigit() else None)
        if number is not None:
            values[name] = Value(number, unit)
    free = [size_bytes(s) for s in re.findall(r"[\d.]+ [KMGT]?i?B", pairs.get("memory.available", ""))]
    if free:
        values["available"] = Value(sum(f for f in free if f is not None), "B")
        values["devices"] = Value(len(free), "count")
    if values:
        yield event_of(line, "offload", values, engine=ENGINE, phase="load")


READERS: tuple[Reader, ...] = (
    table_reader("ollama", ENGINE, _ROWS),
    Reader(name="ollama offload", engine=ENGINE, anchors=("memory.required.full=",), read=_offload),
)
