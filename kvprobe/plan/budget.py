"""From the memory of a card to the bytes of the KV cache, term by term, as each engine does it.

    formula     total - weights - fixed - margin
    vLLM        total x utilisation - weights - non-torch - activation peak [- graphs, from 0.20]
    SGLang      free after load - total x (1 - mem_fraction_static)
    TensorRT-LLM, LMDeploy   free after load x fraction
    others      total - weights - fixed

A term that nobody stated and no file holds is a band from public logs; the result is then a band too.
Sources: vLLM `v1/worker/gpu_worker.py` (0.20.0 applies the CUDA-graph estimate by default, earlier
releases do not), `config/cache.py` (utilisation 0.9 up to 0.19, 0.92 from 0.20); SGLang `server_args.py`
0.5.10; the bands are what public logs print.
"""

from __future__ import annotations

from fractions import Fraction

from kvprobe.plan.pool import ByteRange
from kvprobe.plan.request import PlanRequest
from kvprobe.plan.sizes import GIB
from kvprobe.plan.terms import Budget, Source, Term, difference, scaled, weakest


def _gib(lo: float, hi: float) -> ByteRange:
    return ByteRange(int(lo * GIB), int(hi * GIB))


ACTIVATION_BAND = _gib(0.74, 9.37)
_ACTIVATION_NOTE = (
    "not known before a start: public logs print 0.74 to 9.37 GiB (it follows max-num-batched-tokens, "
    "vision profiling, engine); read it from a start's log and give --activation-peak"
)
GRAPHS_BAND = _gib(0.0, 2.0)
_GRAPHS_NOTE = (
    "CUDA graphs count inside the budget from 0.20; usual sizes, read `Estimated CUDA graph "
    "memory` and give --graphs"
)


def budget_of(request: PlanRequest) -> Budget:
    """The budget by the rule of the engine asked, or by the plain formula without one."""
    terms = _Terms(request)
    if request.available_kv is not None:
        return terms.given(request.available_kv)
    if request.engine is None:
        return terms.formula()
    rule = {
        "vllm": terms.vllm,
        "sglang": terms.sglang,
        "trtllm": terms.share_of_free,
        "lmdeploy": terms.share_of_free,
        "reference": terms.vllm_like_reference,
    }.get(request.engine, terms.rest)
    return rule()


def default_utilisation(request: PlanRequest) -> float:
    """vLLM's default `gpu_memory_utilization`: 0.92 from 0.20.0, 0.9 before."""
    return 0.92 if request.engine == "vllm" and request.at_least(0, 20) else 0.9


def graphs_in_budget(request: PlanRequest) -> bool:
    return request.engine == "vllm" and request.at_least(0, 20)


class _Terms:
    """The terms of one request, and their sums."""

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self.none = Term(reason="no part of this rule")

    # ---- rules ----

    def formula(self) -> Budget:
        total, weights = self.total(), self.weights()
        fixed, margin = self.fixed(banded=True), self.margin()
        kv = difference(total, [weights, fixed, margin])
        return self._made("total - weights - fixed - margin", total, weights, kv, fixed=fixed, margin=margin)

    def rest(self) -> Budget:
        """No pool of its own (llama.cpp, transformers): what is left after weights and work space."""
        return self.formula()

    def vllm(self) -> Budget:
        share = self.request.utilisation or default_utilisation(self.request)
        total, weights = self.total(), self.weights()
        allowed = self._share(total, share, self.request.utilisation is not None)
        graphs = self.graphs()
        rule = "total x utilisation - weights - non-torch - activation peak" + (
            " - graphs" if graphs_in_budget(self.request) else ""
        )
        return self._inner(rule, total, allowed, weights, graphs)

    def vllm_like_reference(self) -> Budget:
        share = self.request.utilisation
        if share is None:
            return self.formula()
        total = self.total()
        allowed = self._share(total, share, True)
        fixed = self.fixed(banded=True)
        kv = difference(allowed, [self.weights(), fixed])
        return self._made(
            "total x utilisation - weights - fixed",
            total,
            self.weights(),
            kv,
            utilisation=allowed,
            fixed=fixed,
        )

    def sglang(self) -> Budget:
        total, weights = self.total(), self.weights()
        share, given = self._sglang_fraction(total)
        allowed = self._share(total, share, given)
        rule = "free after load - total x (1 - mem_fraction_static)"
        if self.request.free_memory is not None and total.value is not None:
            free = Term(value=self.request.free_memory, source="user", note="free after the model is loaded")
            kept = scaled(total, Fraction(1) - Fraction(str(share)))
            kv = difference(free, [kept])
            return self._made(rule, total, weights, kv, utilisation=allowed, free=free)
        non_torch = self.non_torch()
        kv = difference(allowed, [weights, non_torch])
        return self._made(rule, total, weights, kv, utilisation=allowed, non_torch=non_torch)

    def share_of_free(self) -> Budget:
        request = self.request
        usual = 0.9 if request.engine == "trtllm" else 0.8
        share = request.kv_fraction or usual
        total, weights = self.total(), self.weights()
        name = "kv_cache_free_gpu_memory_fraction" if request.engine == "trtllm" else "cache_max_entry_count"
        if request.free_memory is not None:
            free = Term(value=request.free_memory, source="user", note="free after the engine is loaded")
            fixed = non_torch = self.none
        else:
            fixed = self.fixed(banded=False) if request.overhead is not None else self.none
            non_torch = self.non_torch() if request.overhead is None else self.none
            free = difference(total, [weights, *(t for t in (fixed, non_torch) if t is not self.none)])
        source: Source = "user" if request.kv_fraction is not None else "default"
        allowed = Term(source=source, ratio=share, note=f"{name}: of the memory that is free after load")
        kv = scaled(free, Fraction(str(share)))
        return self._made(
            f"free after load x {name}",
            total,
            weights,
            kv,
            utilisation=allowed,
            fixed=fixed,
            non_torch=non_torch,
            free=free,
        )

    def given(self, available: ByteRange) -> Budget:
        """--available-kv overrides every rule; what else was said is shown as it was said."""
        why = "not needed: --available-kv says what is left for the cache"
        absent = Term(reason=why)

        def said(value: ByteRange | None) -> Term:
            return absent if value is None else Term(value=value, source="user")

        r = self.request
        share = (
            Term(reason=why)
            if r.utilisation is None
            else Term(source="user", ratio=r.utilisation, reason=why)
        )
        return Budget(
            total=absent if r.total is None else self.total(),
            utilisation=share,
            weights=said(r.weights),
            non_torch=said(r.non_torch),
            activation_peak=said(r.activation_peak),
            graphs=said(r.graphs),
            fixed=said(r.overhead),
            margin=said(r.margin),
            kv=Term(value=available, source="user"),
            rule="given by --available-kv",
        )

    # ---- terms ----

    def total(self) -> Term:
        r = self.request
        if r.total is None:
            return Term(reason="no --gpu was given")
        source: Source = "table" if r.total_source == "table" else "user"
        return Term(value=r.total, source=source, note=r.total_note)

    def weights(self) -> Term:
        r = self.request
        if r.weights is not None:
            return Term(value=r.weights, source="user")
        spec = r.spec
        split = f", split evenly over {r.ranks} GPUs" if r.ranks > 1 else ""
        if spec.weight_bytes is not None:
            source = spec.weight_bytes_source or "file headers"
            size = ByteRange.of(-(-spec.weight_bytes // r.ranks))
            return Term(value=size, source="measured", note=f"{source}{split}")
        if spec.weight_bytes_range is not None:
            lo, hi = (-(-end // r.ranks) for end in spec.weight_bytes_range)
            size = ByteRange(lo, hi, lo if lo == hi else None)
            note = f"{spec.weight_note}{split}"
            return Term(value=size, source="config", banded=lo != hi, note=note)
        why = f" ({spec.weight_note})" if spec.weight_note else ""
        return Term(reason=f"the configuration does not hold the size of the weights{why}: give --weights")

    def fixed(self, *, banded: bool) -> Term:
        r = self.request
        if r.overhead is not None:
            return Term(value=r.overhead, source="user")
        if not banded:
            return self.none
        pieces = [self.non_torch(), self.activation()]
        lo = sum(t.value.lo for t in pieces if t.value is not None)
        hi = sum(t.value.hi for t in pieces if t.value is not None)
        banded = any(t.banded for t in pieces)
        source = weakest(pieces)
        return Term(
            value=ByteRange(lo, hi),
            source=source,
            banded=banded,
            note="context, communication buffers and activations; give --overhead where it is known",
        )

    def margin(self) -> Term:
        if self.request.margin is not None:
            return Term(value=self.request.margin, source="user")
        return Term(value=ByteRange.of(0), source="default", note="no --margin was given")

    def non_torch(self) -> Term:
        r = self.request
        if r.non_torch is not None:
            return Term(value=r.non_torch, source="user")
        band = _gib(0.03, 0.6) if r.ranks == 1 else _gib(0.1, 3.0)
        several = " with communication buffers" if r.ranks > 1 else ""
        return Term(
            value=band, source="default", banded=True, note=f"context{several}: usual sizes; give --non-torch"
        )

    def activation(self) -> Term:
        if self.request.activation_peak is not None:
            return Term(value=self.request.activation_peak, source="user")
        return Term(value=ACTIVATION_BAND, source="table", banded=True, note=_ACTIVATION_NOTE)

    def graphs(self) -> Term:
        r = self.request
        if not graphs_in_budget(r):
            return Term(
                reason="graphs are captured after the pool is taken and lie outside this version's budget"
            )
        if r.graphs is not None:
            return Term(value=r.graphs, source="user")
        return Term(value=GRAPHS_BAND, source="default", banded=True, note=_GRAPHS_NOTE)

    # ---- sums ----

    def _inner(self, rule: str, total: Term, allowed: Term, weights: Term, graphs: Term) -> Budget:
        """vLLM's own terms; --overhead stands for those of them that were not given one by one."""
        r = self.request
        margin = Term(reason="no part of vLLM's budget: lower --gpu-memory-utilization instead")
        if r.overhead is not None:
            inside = Term(reason="inside `fixed` (--overhead)")
            fixed = Term(value=r.overhead, source="user")
            non_torch = self.non_torch() if r.non_torch is not None else inside
            peak = self.activation() if r.activation_peak is not None else inside
            graphs = graphs if r.graphs is not None and graphs.value is not None else inside
        else:
            fixed, non_torch, peak = self.none, self.non_torch(), self.activation()
        off = [t for t in (weights, non_torch, peak, graphs, fixed) if t.value is not None or t is weights]
        kv = difference(allowed, off)
        return Budget(
            total=total,
            utilisation=allowed,
            weights=weights,
            non_torch=non_torch,
            activation_peak=peak,
            graphs=graphs,
            fixed=fixed,
            margin=margin,
            kv=kv,
            rule=rule,
        )

    def _made(self, rule: str, total: Term, weights: Term, kv: Term, **others: Term) -> Budget:
        names = ("utilisation", "non_torch", "activation_peak", "graphs", "fixed", "margin")
        rest = {name: others.get(name, self.none) for name in names}
        return Budget(
            total=total, weights=weights, kv=kv, rule=rule, free=others.get("free", self.none), **rest
        )

    def _share(self, total: Term, share: float, given: bool) -> Term:
        allowed = scaled(total, Fraction(str(share)))
        source: Source = "user" if given else "default"
        return Term(value=allowed.value, source=source, ratio=share, reason=allowed.reason)

    def _sglang_fraction(self, total: Term) -> tuple[float, bool]:
        """`mem_fraction_static` as given, or as SGLang 0.5 works it out from the size of the card.

        Reserved MiB: 512 + 1.5 x chunk + 2 x largest graph batch + 128 x ranks, and 10 GiB at least on
        cards above 60 GiB (`server_args.py` 0.5.10; draft models and data-parallel attention not counted).
        """
        r = self.request
        if r.mem_fraction_static is not None:
            return r.mem_fraction_static, True
        if total.value is None:
            return 0.88, False
        card_mib = total.value.nominal / 2**20
        steps = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))
        chunk, batch = next(
            ((c, few if r.options.tp < 4 else many) for gib, c, few, many in steps if card_mib < gib * 1024),
            (16384, 512),
        )
        reserved = 512 + 1.5 * chunk + 2 * batch + 128 * r.ranks
        if card_mib > 60 * 1024:
            reserved = max(reserved, 10 * 1024)
        return max(0.1, round((card_mib - reserved) / card_mib, 3)), False
