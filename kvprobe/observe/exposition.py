"""The Prometheus text format, read fast: only the families that are asked for.

A scrape stands beside the load on the same cores, so lines of unwanted families cost one dictionary
look-up and no more. prometheus-client's parser is the oracle of the tests: on any page that it
accepts, the samples are the same. Here damage is counted instead of raised, because a page may be
cut off, and exemplars of OpenMetrics are tolerated.
Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_BLANK = " \t\r"
# Every repetition is possessive, so hostile lines cannot make the matching backtrack.
_REST = re.compile(
    r'(?:[ \t]*+\{(?P<labels>(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\})?+'
    r"[ \t]*+(?P<value>[^ \t{}#]++)(?:[ \t]++[-+0-9.eE]++)?+[ \t]*+(?:#.*+)?+",
    re.DOTALL,
)
_LABEL = re.compile(
    r"[ \t]*+(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)[ \t]*+=[ \t]*+"
    r'"(?P<value>(?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|$)',
    re.DOTALL,
)
# A name with or without labels, and nothing behind: whatever follows such a key is the number.
_SERIES_KEY = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*+(?:\{(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+\})?+', re.DOTALL)
_ESCAPE = re.compile(r'\\[\\n"]')
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}

Labels = Mapping[str, str]

_CACHED_LABELS_BYTES = 4096
"""Longer label lists are read afresh each time, so that a hostile page cannot fill the memory."""

_CACHED_SERIES = 8192
_SERIES: dict[str, tuple[str, Labels]] = {}
"""`name{labels}` -> name and labels, for every reader: a page of another target reads the same way."""


@dataclass(slots=True)
class Exposition:
    """What a page says about the wanted names.

    `samples` are (name, labels, value) in the order of the page, a repeated series included;
    `declared` are the wanted names that have a TYPE line, with or without samples;
    `damaged` counts lines of wanted names that cannot be read, and a last line that was cut off.
    """

    samples: list[tuple[str, Labels, float]] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    damaged: int = 0


def read_exposition(text: str, wanted: Container[str]) -> Exposition:
    """Read the samples of `text` whose name is in `wanted`.

    The format ends every line with a line feed. A last line without one is cut off and dropped: its
    number may have lost digits.
    """
    page = Exposition()
    lines = text.split("\n")
    tail = lines.pop().strip(_BLANK)
    if tail and not tail.startswith("#"):
        page.damaged += 1
    for line in lines:
        if line.startswith("#"):
            if line.startswith("# TYPE "):
                _declare(page, line, wanted)
            continue
        key, _, number = line.rpartition(" ")
        series = _SERIES.get(key)
        if series is not None and (value := _number(number)) is not None:
            if series[0] in wanted:
                page.samples.append((*series, value))
            continue
        head, brace, _ = line.partition("{")
        name = head if brace and head in wanted else _first_word(head)
        if name not in wanted:
            continue
        sample = _read_sample(name, line)
        if sample is None:
            page.damaged += 1
        else:
            page.samples.append(sample)
            _remember(key, sample)
    return page


def _remember(key: str, sample: tuple[str, Labels, float]) -> None:
    """`name{labels}` is the same with every scrape: only the number behind it has to be read again."""
    if len(key) <= _CACHED_LABELS_BYTES and _SERIES_KEY.fullmatch(key):
        if len(_SERIES) >= _CACHED_SERIES:
            _SERIES.clear()
        _SERIES[key] = sample[:2]


def _number(text: str) -> float | None:
    """Null where the long way round has to decide."""
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _declare(page: Exposition, line: str, wanted: Container[str]) -> None:
    words = line.split(None, 3)
    if len(words) > 2 and words[2] in wanted:
        page.declared.add(words[2])


def _first_word(text: str) -> str:
    words = text.split(None, 1)
    return words[0] if words else ""


def _read_sample(name: str, line: str) -> tuple[str, Labels, float] | None:
    line = line.strip(_BLANK)
    match = _REST.fullmatch(line, len(name))
    if match is None or "_" in match["value"]:
        return None
    text = match["labels"] or ""
    labels = _cached_labels(text) if len(text) <= _CACHED_LABELS_BYTES else _read_labels(text)
    try:
        return None if labels is None else (name, labels, float(match["value"]))
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _cached_labels(text: str) -> Labels | None:
    """The same label lists come back with every scrape."""
    return _read_labels(text)


def _read_labels(text: str) -> Labels | None:
    labels: dict[str, str] = {}
    text = text.strip(_BLANK)
    position = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None or match["name"] in labels:
            return None
        value = match["value"]
        labels[match["name"]] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        position = match.end()
    return labels


def _unescape(match: re.Match[str]) -> str:
    return _UNESCAPED[match[0]]
