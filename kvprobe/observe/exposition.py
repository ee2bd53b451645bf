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
_SERIES_KEY = re.compile(
    r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)(?:\{(?P<labels>(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+)\})?+', re.DOTALL
)
_PLAIN_LABEL = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*+)="([^"\\]*+)"(?:,|$)')
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
        if series is None:
            head, brace, _ = key.partition("{")
            name = head if brace and head in wanted else _first_word(line.partition("{")[0])
            if name not in wanted:
                continue
            series = _new_series(name, key)
        elif series[0] not in wanted:
            continue
        if series is not None and (value := _number(number)) is not None:
            page.samples.append((*series, value))
        elif (sample := _read_sample(_first_word(line.partition("{")[0]), line)) is not None:
            page.samples.append(sample)
        else:
            page.damaged += 1
    return page


def remembered() -> int:
    """Series that are known from earlier pages."""
    return len(_SERIES)


def _new_series(name: str, key: str) -> tuple[str, Labels] | None:
    """`name{labels}` is the same with every scrape: only the number behind it has to be read again.

    Null where something else stands in it (blanks, a number before a time stamp, an exemplar), which is
    then read the long way.
    """
    match = _SERIES_KEY.fullmatch(key) if len(key) <= _CACHED_LABELS_BYTES else None
    if match is None or match["name"] != name:
        return None
    labels = _read_labels(match["labels"] or "")
    if labels is None:
        return None
    if len(_SERIES) >= _CACHED_SERIES:
        _SERIES.clear()
    _SERIES[key] = (name, labels)
    return name, labels


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
    labels = _read_labels(match["labels"] or "")
    try:
        return None if labels is None else (name, labels, float(match["value"]))
    except ValueError:
        return None


def _read_labels(text: str) -> Labels | None:
    pairs = _PLAIN_LABEL.findall(text)
    # As long as the text: then nothing stands in it but these, each followed by one comma or the end.
    if pairs and sum(len(name) + len(value) + 4 for name, value in pairs) == len(text) + 1:
        plain = dict(pairs)
        return plain if len(plain) == len(pairs) else None
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
