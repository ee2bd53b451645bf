"""SGLang: token slots of one or two pools, and state slots.

    MHA cell = layers x heads x (k + v) x element;  MLA cell = layers x latent (+ indexer)
    slots of states = budget x R / (1 + R) // bytes of a request's states, R = mamba-full-memory-ratio
    with sliding layers: full tokens = cells' bytes / (F + r S), sliding tokens = r x full tokens

The printed "#tokens" leave out one page of padding, and `max_mamba_cache_size` one slot, which are
allocated all the same. Read in the wheels 0.4.6 to 0.5.10; boundaries are in `versions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvprobe.model.layouts import (
    attention_bytes_per_token,
    indexer_bytes,
    latent_bytes_per_token,
    state_part_bytes,
)
from kvprobe.model.spec import Attention, Latent, Layer, State
from kvprobe.plan.engines.arithmetic import ceil_div, largest, round_up, spread, whole_bytes
from kvprobe.plan.engines.cached import windows_of
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.engines.versions import has
from kvprobe.plan.pool import ByteRange, Pool

SWA_FULL_TOKENS_RATIO = Fraction(8, 10)
MAMBA_FULL_MEMORY_RATIO = Fraction(9, 10)
SLOTS_PER_REQUEST = 3
"""State slots that a running request needs while the radix cache keeps states of prefixes."""
_SPARSE_PAGE_TOKENS = 64
_LEAST_REQUESTS, _MOST_REQUESTS = 2048, 4096


@dataclass(frozen=True, slots=True)
class Cells:
    """Bytes of one stage: per token in full and in sliding layers, K and V apart, and per request."""

    full_k: Fraction
    full_v: Fraction
    latent: Fraction
    index: int
    sliding_k: Fraction
    sliding_v: Fraction
    ssm: int
    conv: int

    @property
    def full(self) -> Fraction:
        return self.full_k + self.full_v + self.latent

    @property
    def sliding(self) -> Fraction:
        return self.sliding_k + self.sliding_v

    @property
    def states(self) -> int:
        return self.ssm + self.conv


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one amount of memory gives: tokens of both pools and slots for states."""

    full: int
    sliding: int
    slots: int

    @property
    def tokens(self) -> int:
        """What `max_total_num_tokens` says."""
        return self.full or self.sliding


@dataclass(frozen=True, slots=True)
class Layout:
    """A model in SGLang: the cells of each stage, the page, and the window of sliding layers."""

    setting: Setting
    stages: tuple[Cells, ...]
    page: int
    window: int | None

    @property
    def has_states(self) -> bool:
        return any(stage.states for stage in self.stages)

    def capacity(self, size: int) -> Capacity:
        """The smallest stage's."""
        found = [self._stage(stage, size) for stage in self.stages]
        return Capacity(
            min(one.full for one in found), min(one.sliding for one in found), min(one.slots for one in found)
        )

    def _stage(self, cells: Cells, size: int) -> Capacity:
        slots, rest = self._slots(cells, max(0, size))
        cell = cells.full + cells.sliding + (cells.index if self._index_counted else 0)
        tokens = int(rest // cell) // self.page * self.page if cell else 0
        if not cells.sliding:
            return Capacity(tokens, 0, slots)
        if not cells.full:
            return Capacity(0, tokens, slots)
        ratio = _ratio(self.setting.options.swa_full_tokens_ratio, SWA_FULL_TOKENS_RATIO)
        full = int(tokens * (cells.full + cells.sliding) / (cells.full + ratio * cells.sliding))
        full = full // self.page * self.page
        return Capacity(full, int(full * ratio) // self.page * self.page, slots)

    @property
    def _index_counted(self) -> bool:
        return has(self.setting.version, "indexer_counted")

    def _slots(self, cells: Cells, size: int) -> tuple[int, int]:
        """State slots, and the bytes that they leave to tokens."""
        options = self.setting.options
        if not cells.states:
            return 0, size
        drafted = options.speculative_tokens
        per_slot = cells.states
        if drafted and has(self.setting.version, "draft_states"):
            size -= cells.states * (options.max_running_requests or 0) * drafted
        elif drafted:
            per_slot *= 1 + drafted
        if options.state_slots is not None:
            slots = options.state_slots
        elif options.prefix_caching is False and options.max_running_requests:
            slots = options.max_running_requests
        else:
            ratio = _ratio(options.mamba_full_memory_ratio, MAMBA_FULL_MEMORY_RATIO)
            slots = int(max(0, size) * ratio / (1 + ratio)) // per_slot
        return slots, max(0, size - slots * per_slot)

    def corners(self, available: ByteRange) -> tuple[int, ...]:
        """Amounts where one state slot more leaves less to tokens, and those just below them.

        Tokens grow between two such steps and over many, so that the first steps and the last decide.
        """
        first, last = (self.capacity(size).slots for size in (available.lo, available.hi))
        wanted = sorted(
            {*range(first + 1, min(first + 3, last + 1)), *range(max(first + 1, last - 1), last + 1)}
        )
        width = available.hi - available.lo

        def start(slots: int) -> int:
            below = largest(lambda more: self.capacity(available.lo + more).slots < slots, width)
            return available.lo + below + 1

        return tuple(size for slots in wanted for size in (start(slots) - 1, start(slots)))

    def max_requests(self, capacity: Capacity) -> int:
        """Requests that run at once: a table of them is made at start, and states bound it further."""
        options = self.setting.options
        if not any(stage.full + stage.sliding for stage in self.stages):
            return capacity.slots
        tokens = capacity.tokens
        length = self.setting.max_model_len or 1
        table = min(max(int(tokens / length * 512), _LEAST_REQUESTS), _MOST_REQUESTS)
        most = min(options.max_running_requests or tokens // 2, table)
        if self.has_states:
            most = min(most, capacity.slots // (1 if options.prefix_caching is False else SLOTS_PER_REQUEST))
        return most

    def holds(self, capacity: Capacity, tokens: int) -> int:
        """Requests of `tokens` tokens that both pools hold."""
        if tokens <= 0:
            return 0
        bounds = [self.max_requests(capacity)]
        pages = round_up(tokens, self.page)
        if capacity.full:
            bounds.append(capacity.full // pages)
        if capacity.sliding:
            kept = min(pages, round_up(self.window or tokens, self.page) + self.page)
            bounds.append(capacity.sliding // kept)
        return max(0, min(bounds))


def _ratio(given: float | None, default: Fraction) -> Fraction:
    return default if given is None else Fraction(str(given))


def sglang_pool(setting: Setting, available: ByteRange) -> Pool:
    """What SGLang makes of the budget that mem-fraction-static leaves (`available`, on every GPU)."""
    layout = _layout(setting)
    capacity = layout.capacity(available.nominal)
    corners = layout.corners(available)
    tokens, tokens_range = spread(available, lambda size: layout.capacity(size).tokens, corners)
    sliding, sliding_range = spread(available, lambda size: layout.capacity(size).sliding, corners)
    slots, slots_range = spread(available, lambda size: layout.capacity(size).slots)
    low, high = tokens_range
    has_sliding = any(stage.sliding for stage in layout.stages)
    return Pool(
        engine="sglang",
        version=setting.version.text,
        fits=layout.holds(capacity, 1) > 0,
        available_bytes=available.nominal,
        num_blocks=tokens // layout.page,
        num_blocks_range=(low // layout.page, high // layout.page),
        block_size=layout.page,
        # Two pools have no common block.
        block_bytes=None
        if has_sliding
        else whole_bytes(max(stage.full for stage in layout.stages) * layout.page),
        tokens=tokens,
        tokens_range=tokens_range,
        log_line_tokens=tokens,
        log_line_tokens_range=tokens_range,
        full_tokens=capacity.full if has_sliding else None,
        full_tokens_range=tokens_range if has_sliding and capacity.full else None,
        swa_tokens=sliding if has_sliding else None,
        swa_tokens_range=sliding_range if has_sliding else None,
        state_slots=slots if layout.has_states else None,
        state_slots_range=slots_range if layout.has_states else None,
        max_requests=layout.max_requests(capacity),
        parts_bytes=_parts(layout, capacity),
        estimated_max_model_len=largest(lambda tokens: layout.holds(capacity, tokens) >= 1, max(tokens, 1)),
        assumptions=_notes(setting),
        reservation=lambda tokens: ceil_div(tokens, layout.page),
        holds=lambda tokens: layout.holds(capacity, tokens),
    ).at_length(setting.max_model_len)


def _notes(setting: Setting) -> tuple[str, ...]:
    if setting.sparse_latent and not has(setting.version, "indexer_counted"):
        return ("this SGLang allocates the indexer beside what it prints and plans",)
    return ()


def _layout(setting: Setting) -> Layout:
    page = setting.options.block_size or (_SPARSE_PAGE_TOKENS if setting.sparse_latent else 1)
    stages = tuple(_cells(stage, setting) for stage in setting.stages() if stage)
    return Layout(setting, stages, page, max(windows_of(setting.spec), default=None))


def _cells(layers: tuple[Layer, ...], setting: Setting) -> Cells:
    zero = Fraction(0)
    k = {"full": zero, "sliding": zero}
    v = {"full": zero, "sliding": zero}
    latent, index = zero, 0
    state = {"ssm": 0, "conv": 0}
    for layer in layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                pool = "sliding" if mixer.kind in ("sliding", "chunked") else "full"
                both = attention_bytes_per_token(mixer, setting.k, setting.v, tp=setting.options.tp)
                keys = both * _k_share(mixer, setting)
                k[pool] += keys
                v[pool] += both - keys
            elif isinstance(mixer, Latent):
                latent += latent_bytes_per_token(mixer, setting.k)
                index += indexer_bytes(mixer.indexer_dim) if mixer.indexer_dim is not None else 0
            elif isinstance(mixer, State):
                for part in mixer.parts:
                    name = "ssm" if part.name == "ssm" else "conv"
                    state[name] += state_part_bytes(
                        part, tp=setting.options.tp, model_dtype=setting.spec.dtype
                    )
    return Cells(k["full"], v["full"], latent, index, k["sliding"], v["sliding"], state["ssm"], state["conv"])


def _k_share(attention: Attention, setting: Setting) -> Fraction:
    keys = setting.k.vector_bytes(attention.k_dim)
    return keys / (keys + setting.v.vector_bytes(attention.v_dim))


def _parts(layout: Layout, capacity: Capacity) -> dict[str, int]:
    """Bytes as SGLang prints them for its largest stage: with the page of padding and the spare slot."""
    cells = max(layout.stages, key=lambda stage: stage.full + stage.sliding)
    full, sliding = capacity.full + layout.page, capacity.sliding + layout.page
    index = cells.index if has(layout.setting.version, "indexer_counted") else 0
    states = capacity.slots + 1
    sizes = {
        "k": cells.full_k * full,
        "v": cells.full_v * full,
        "kv": (cells.latent + index) * full if cells.latent else Fraction(0),
        "swa_k": cells.sliding_k * sliding,
        "swa_v": cells.sliding_v * sliding,
        "ssm": Fraction(cells.ssm * states),
        "conv": Fraction(cells.conv * states),
    }
    return {name: whole_bytes(size) for name, size in sizes.items() if size}
