"""llama.cpp: a slot held the beginning of a prompt, and not a token of it was used.

Its server says of each request which slot it got and how much of the prompt that slot already held; the
usage of the answer says how much of it was taken from there. A slot keeps its last prompt whether or not
reuse is on, so the two together tell a cache that is never asked from one that has nothing.
"""

from __future__ import annotations

from typing import Any, Final

from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.base import evidence
from kvprobe.diagnose.rules.logs.base import cite
from kvprobe.diagnose.rules.prefix_facts import MOVING_GAINS, NO_HITS, got_of
from kvprobe.diagnose.view import View
from kvprobe.summary.units import percent, plural, whole

MIN_HELD: Final = 3
COMPUTED: Final = "engine.prompt_tokens_computed_total"


def held_and_not_used(view: View) -> list[Evidence]:
    """Needs: a hit rate of 0, and requests whose slot held a good part of their prompt. Refuted by a model
    whose memory cannot be rewound (the server says so at each such request): then reuse is on."""
    got = got_of(view)
    if view.log is None or got is None or got >= NO_HITS or view.log.all("no_rewind"):
        return []
    held = [e for e in view.log.all("prompt_held") if (e.get("similarity") or 0.0) >= MOVING_GAINS]
    times = sum(e.repeats for e in held)
    if times < MIN_HELD:
        return []
    shares = sorted(e.get("similarity") for e in held)
    text = (
        f"{plural(times, 'request')} got a slot that held {percent(shares[len(shares) // 2])} of the prompt"
    )
    return [evidence("server log", text, requests=(times, "count")), *map(cite, held[:2]), *_computed(view)]


def asked_without_cache(view: View) -> bool:
    """The requests themselves asked llama.cpp not to use its cache."""
    request: Any = view.run.workload.get("request")
    body = request.get("extra_body") if isinstance(request, dict) else None
    return isinstance(body, dict) and body.get("cache_prompt") is False


def _computed(view: View) -> list[Evidence]:
    computed = view.increase(COMPUTED)
    if computed is None or computed.value <= 0:
        return []
    text = f"{whole(computed.value)} prompt tokens were computed"
    return [evidence(COMPUTED, text, computed=(computed.value, "tokens"))]
