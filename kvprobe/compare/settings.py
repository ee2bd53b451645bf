"""How the two runs were made: every difference that could explain one in the numbers."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from kvprobe.compare.model import Setting
from kvprobe.evidence.rundata import RunData

_FACT_GROUPS = {"cache_config": "cache", "engine": "engine", "target": "target", "calibration": "target"}
_PASSING = frozenset({"base_url", "metrics_url", "kv_cache_size_tokens_free", "models", "words"})
"""What differs from run to run without meaning: a port, a list of names."""
_GROUP_ORDER = ("server", "engine", "cache", "target", "workload", "client", "machine")
_MACHINE = ("cpu_count", "cpu_usable", "platform")
_CLIENT = ("kvprobe", "python", "libraries", "processes")
assert set(_GROUP_ORDER) == set(get_args(get_type_hints(Setting)["group"]))


def differences(a: RunData, b: RunData) -> list[Setting]:
    """Settings that differ, those of the server first."""
    flat_a, flat_b = _settings(a), _settings(b)
    keys = flat_a.keys() | flat_b.keys()
    found = [
        Setting(group=group, name=name, a=flat_a.get((group, name)), b=flat_b.get((group, name)))  # type: ignore[arg-type]
        for group, name in sorted(keys, key=lambda key: (_GROUP_ORDER.index(key[0]), key[1]))
        if flat_a.get((group, name)) != flat_b.get((group, name))
    ]
    return found


def _settings(run: RunData) -> dict[tuple[str, str], Any]:
    out: dict[tuple[str, str], Any] = {}
    for name, value in _server_options(run.environment.get("server_args")).items():
        out["server", name] = value
    for fact in run.facts:
        if (group := _FACT_GROUPS.get(fact.name)) is not None and isinstance(fact.value, dict):
            for name, value in fact.value.items():
                if name not in _PASSING:
                    own = f"{fact.name}.{name}" if fact.name in ("engine", "calibration") else name
                    out[group, own] = value
    for group, names in (("machine", _MACHINE), ("client", _CLIENT)):
        for name in names:
            value = run.environment.get(name)
            items = value.items() if isinstance(value, dict) else [(None, value)]
            for key, item in items:
                out[group, f"{name}.{key}" if key else name] = item
    if (label := run.workload.get("name")) is not None:
        out["workload", "name"] = label
    return out


def _server_options(args: Any) -> dict[str, Any]:
    """`--block-size 32 --no-prefix-caching` as a mapping; an option may come more than once."""
    given: dict[str, list[str]] = {}
    name: str | None = None
    for word in args if isinstance(args, list) else []:
        text = str(word)
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            given.setdefault(name, []).extend([value] if equals else [])
        elif name is not None:
            given[name].append(text)
    return {option: " ".join(values) if values else True for option, values in given.items()}
