"""A number that the user was told, and the classic mistake that explains it, if one does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kvprobe.model.spec import Attention, Latent
from kvprobe.plan.pool import ByteRange
from kvprobe.plan.solve import Solution
from kvprobe.summary.units import whole

CLOSE = 0.03
"""How near a claimed number must come to a mistaken one to be explained by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """`code` is stable; `text` says what was seen with its numbers; `fix` what to do."""

    code: str
    text: str
    fix: str | None = None


def claimed(solution: Solution, claim: ByteRange) -> Iterator[PlanWarning]:
    """Which mistake, if any, turns the true number into the one claimed."""
    tokens = solution.request.options.tokens
    cost = solution.cost
    true = Fraction(cost.bytes_at(tokens)) if tokens else (cost.growing or cost.early)
    about = f"{whole(tokens)} tokens" if tokens else "one token"
    claimed = claim.nominal
    if not true or not claimed:
        return
    ratio = float(claimed / true)
    said = f"{whole(claimed)} bytes for {about}, against {float(true):,.0f} here ({ratio:.3g} times)"
    if abs(ratio - 1) <= 0.005:
        return
    for factor, code, text, fix in _mistakes(solution):
        if abs(ratio / factor - 1) <= CLOSE / 3:
            yield PlanWarning(code=code, text=f"{said}: {text}", fix=fix)
            return
    yield PlanWarning(
        code="claim_differs",
        text=f"{said}: no classic mistake explains it",
        fix="ask where the number comes from",
    )


Mistake = tuple[float, str, str, str]
"""Factor by which it is off, its id, what it is, what to do."""


def _mistakes(solution: Solution) -> Iterator[Mistake]:
    yield from _of_heads(solution)
    yield 10**9 / 2**30, "gb_for_gib", "GB was written for GiB, or GiB counted as GB", "1 GiB is 1.074 GB"
    yield 2**30 / 10**9, "gb_for_gib", "GiB was written for GB", "1 GiB is 1.074 GB"
    own = "the cache keeps its own format: 16 bit unless --kv-dtype says otherwise"
    yield 0.25, "weight_bits", "4-bit weights were taken for a 4-bit cache", own
    both = "K and V are both stored, also where attention_k_eq_v is set; an 8-bit cache has to be switched on"
    yield 0.5, "k_or_v_left_out", "only K (or only V) was counted, or an 8-bit cache was assumed", both
    twice = "K and V were counted twice, or a 32-bit cache was assumed"
    yield 2.0, "doubled", twice, "the cache has the model's dtype"
    yield from _of_latents(solution)
    yield from _of_layers(solution)


def _attentions(solution: Solution) -> list[Attention]:
    layers = solution.request.spec.owning()
    return [mixer for layer in layers for mixer in layer.mixers if isinstance(mixer, Attention)]


def _of_heads(solution: Solution) -> Iterator[Mistake]:
    """Query heads for KV heads; a head's width taken from the hidden size."""
    spec, attentions = solution.request.spec, _attentions(solution)
    heads, widths = {a.kv_heads for a in attentions}, {a.k_dim for a in attentions}
    if len(heads) == 1 and spec.query_heads > (kv_heads := next(iter(heads))):
        fix = f"use num_key_value_heads ({kv_heads}), not num_attention_heads ({spec.query_heads})"
        yield spec.query_heads / kv_heads, "query_heads", "query heads were counted for KV heads", fix
    derived = spec.hidden_size / spec.query_heads if spec.query_heads else 0.0
    if len(widths) == 1 and derived and abs(derived / (width := next(iter(widths))) - 1) > 0.01:
        fix = f"the configuration says head_dim {width}"
        yield derived / width, "head_dim", "head_dim was derived from the hidden size", fix


def _of_latents(solution: Solution) -> Iterator[Mistake]:
    """MLA: divided over ranks that each hold all of it, or counted as ordinary heads."""
    spec, cost, tp = solution.request.spec, solution.cost, solution.request.options.tp
    latents = [m for layer in spec.owning() for m in layer.mixers if isinstance(m, Latent)]
    if not latents or not cost.growing:
        return
    if tp > 1:
        fix = "every rank holds the whole latent"
        yield 1 / tp, "latent_split", "the MLA latent was divided by the tensor-parallel size", fix
    plain = sum(m.plain.kv_heads * (m.plain.k_dim + m.plain.v_dim) for m in latents)
    factor = plain * float(cost.k.bytes_per_element) / float(cost.growing)
    yield factor, "mla_as_heads", "MLA was counted as ordinary heads", "engines keep the compressed latent"


def _of_layers(solution: Solution) -> Iterator[Mistake]:
    """Windows and states counted as if every layer kept all tokens."""
    cost = solution.cost
    grown = sum(p.layers for p in cost.parts if p.window_tokens is None and p.bytes_per_token)
    layers = len(solution.request.spec.layers)
    if grown and grown < layers and (cost.windowed or cost.constant):
        fix = f"{grown} of {layers} layers keep all tokens"
        yield layers / grown, "all_layers_full", "every layer was counted as full attention", fix
