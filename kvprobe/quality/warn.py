"""What a reader of a comparison must know beside its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from kvprobe.quality.dataset import Dataset
from kvprobe.quality.divergence import Divergence
from kvprobe.quality.model import Pass, Server
from kvprobe.quality.pressure import FULL_RATIO
from kvprobe.summary.units import plural, whole

SHOWN_MODELS = 3
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def warnings_of(
    passes: Sequence[Pass],
    noise: Divergence,
    servers: tuple[Server, Server],
    models: tuple[set[str], set[str]],
    data: Dataset,
) -> list[str]:
    a, b = servers
    out = []
    if a.model != b.model:
        out.append(f"the models have two names, {a.model} and {b.model}: are they the same weights?")
    if _may_be_one(a.url, b.url):
        out.append(
            "baseline and candidate have one port under two names of this machine: are they two servers?"
        )
    out += _other_models(servers, models)
    out += _unanswered(passes)
    if not passes[0].divergence.logprob_tokens:
        out.append("no log probabilities: damage that changes no answer cannot be seen")
    if noise.n == 0:
        out.append("the baseline was not asked a second time: how often it differs from itself is not known")
    if None in (a.kv_dtype, b.kv_dtype):
        out.append("a server does not tell its KV format: a loss can then only be suspected to come from it")
    if data.repeated:
        out.append(f"{plural(data.repeated, 'line')} of the file repeated a question and did not count again")
    if data.left:
        out.append(
            f"the first {plural(len(data.items), 'question')} of the file were asked, and {whole(data.left)} "
            "more lines were not: see --items"
        )
    return out


def _may_be_one(a: str, b: str) -> bool:
    """`localhost` and `127.0.0.1` need not be one server, but mostly are."""
    parts = [urlsplit(url) for url in (a, b)]
    hosts = {part.hostname for part in parts}
    return parts[0].port == parts[1].port and len(hosts) == 2 and hosts <= _LOOPBACK


def _other_models(servers: tuple[Server, Server], models: tuple[set[str], set[str]]) -> list[str]:
    out = []
    for name, server, named in zip(("baseline", "candidate"), servers, models, strict=True):
        if others := sorted(named - {server.model}):
            told = ", ".join(others[:SHOWN_MODELS])
            out.append(f"the {name} was asked for {server.model}, and its answers name {told}")
    return out


def _unanswered(passes: Sequence[Pass]) -> list[str]:
    out = []
    for found in passes:
        both = found.unanswered[0] - found.unpaired[0]
        when = " under pressure" if found.pressure else ""
        whys = dict.fromkeys(why for why in found.unanswered_why if why is not None)
        if any(found.unanswered):
            out.append(
                f"left out{when}, because not answered: {found.unpaired[0]} by the baseline alone, "
                f"{found.unpaired[1]} by the candidate alone, {both} by both ({'; '.join(whys)})"
            )
    return out


def pressure_warnings(usage: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Pools that were not held as full as they should have been."""
    out = []
    for name, seen in usage.items():
        middle = seen["median"]
        if middle is None or middle < FULL_RATIO:
            reached = f"{middle:.0%}" if middle is not None else "not known"
            out.append(f"the pool of {name} was not held at {FULL_RATIO:.0%}: the median was {reached}")
    return out
