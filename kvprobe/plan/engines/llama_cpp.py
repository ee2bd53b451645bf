"""llama.cpp: the whole context is allocated at start, in cells; sliding layers and states apart.

    context = 256-cell multiple; without the unified cache, that for each sequence
    base    = own layers that grow x cells x (n_embd_k x type K + n_embd_v x type V)
    sliding = layers x PAD(min(context, window x (unified ? sequences : 1) + ubatch), 256) cells
    states  = f32, one for each sequence (and one more for each drafted token)

Sources: llama.cpp PR 13194 and `llama-kv-cache-iswa.cpp` as quoted in ik_llama.cpp issue 1607; PR 7530 of
unslothai/unsloth, which measured 39 settings; our recordings of b11434.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvprobe.errors import Problem, UsageError
from kvprobe.model.spec import Attention, Latent, Mixer, State
from kvprobe.plan.engines.arithmetic import largest, round_up, whole_bytes
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.engines.versions import since
from kvprobe.plan.pool import ByteRange, Pool

CELL_PAD = 256
DEFAULT_UBATCH = 512
_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """A model in llama.cpp: bytes of a cell, and of one sequence's states."""

    base: Fraction
    sliding: Fraction
    window: int
    state: int
    sequences: int
    ubatch: int
    unified: bool
    swa_full: bool

    def cells(self, context: int) -> tuple[int, int]:
        """Cells of all streams together: of the growing layers, and of the sliding ones."""
        per_stream = self.stream_cells(context)
        streams = 1 if self.unified else self.sequences
        sharing = self.sequences if self.unified else 1
        small = round_up(min(per_stream, self.window * sharing + self.ubatch), CELL_PAD)
        return per_stream * streams, (per_stream if self.swa_full else small) * streams

    def stream_cells(self, context: int) -> int:
        """Cells of the growing layers in one stream: the context, or a sequence's share of it."""
        padded = round_up(context, CELL_PAD)
        return padded if self.unified else round_up(padded // self.sequences, CELL_PAD)

    def parts(self, context: int) -> dict[str, int]:
        """Bytes as they are printed: base, sliding and recurrent."""
        base, sliding = self.cells(context)
        sizes = {
            "base": self.base * base,
            "sliding": self.sliding * sliding,
            "recurrent": Fraction(self.state * self.sequences),
        }
        return {name: whole_bytes(size) for name, size in sizes.items() if size}


def llama_cpp_pool(setting: Setting, available: ByteRange | None) -> Pool:
    """The caches that llama.cpp allocates for this context; whether they fit `available` bytes."""
    notes = []
    context = _context(setting)
    layout = _layout(setting)
    parts = layout.parts(context)
    needed = sum(parts.values())
    total, sliding = layout.cells(context)
    per_sequence = layout.stream_cells(context)
    if setting.options.parallel is None:
        notes.append("one sequence, as no --parallel was given; llama-server may choose 4 by itself")
    if setting.options.kv_unified is None and layout.sequences > 1:
        notes.append(
            "the cache is shared by all sequences; with an explicit -np it is split: --no-kv-unified"
        )
    return Pool(
        engine="llama.cpp",
        version=setting.version.text,
        fits=available is None or needed <= available.nominal,
        available_bytes=available.nominal if available else None,
        block_size=1,
        block_bytes=whole_bytes(layout.base),
        tokens=total,
        tokens_range=(total, total),
        log_line_tokens=total,
        log_line_tokens_range=(total, total),
        max_model_len=per_sequence,
        max_concurrency=total / per_sequence,
        full_tokens=total if layout.sliding else None,
        swa_tokens=sliding if layout.sliding else None,
        state_slots=layout.sequences if layout.state else None,
        max_requests=layout.sequences,
        parts_bytes=parts,
        estimated_max_model_len=_longest(layout, setting, available),
        needed_bytes=needed,
        assumptions=tuple(notes),
        reservation=lambda tokens: tokens,
        holds=lambda tokens: _holds(layout, context, tokens),
    )


def _context(setting: Setting) -> int:
    context = setting.options.ctx or setting.max_model_len
    if context is None:
        raise UsageError(
            Problem(
                code="no_context",
                message="the model names no context length, and llama.cpp allocates all of it",
                fix="say how long the context is: --ctx 8192",
            )
        )
    return context


def _holds(layout: Layout, context: int, tokens: int) -> int:
    if tokens <= 0 or tokens > layout.stream_cells(context):
        return 0
    if not layout.unified:
        return layout.sequences
    return min(layout.sequences, layout.stream_cells(context) // tokens)


def _longest(layout: Layout, setting: Setting, available: ByteRange | None) -> int | None:
    """The largest --ctx whose caches fit."""
    if available is None:
        return None
    limit = max(setting.spec.max_position_tokens or 0, setting.options.ctx or 0) * layout.sequences
    return largest(lambda context: sum(layout.parts(context).values()) <= available.nominal, limit)


def _layout(setting: Setting) -> Layout:
    options = setting.options
    separate = since(setting.version, "iswa") and setting.version.fork is None
    base = sliding = Fraction(0)
    state, windows = 0, [0]
    for layer in setting.layers():
        for mixer in layer.mixers:
            if isinstance(mixer, State):
                state += sum(part.elements for part in mixer.parts) * _STATE_BYTES
            elif isinstance(mixer, Attention) and mixer.window_tokens and separate:
                sliding += _cell(mixer, setting)
                windows.append(mixer.window_tokens)
            else:
                base += _cell(mixer, setting)
    return Layout(
        base=base,
        sliding=sliding,
        window=max(windows),
        state=state * (1 + options.speculative_tokens),
        sequences=options.parallel or 1,
        ubatch=options.ubatch or DEFAULT_UBATCH,
        unified=options.kv_unified is not False,
        swa_full=options.swa_full,
    )


def _cell(mixer: Mixer, setting: Setting) -> Fraction:
    """Bytes of one cell in one layer."""
    if isinstance(mixer, Latent):
        keys = (mixer.lora_rank + mixer.rope_dim + (mixer.indexer_dim or 0)) * setting.k.bytes_per_element
        has_values = not since(setting.version, "v_less") and setting.version.fork is None
        return keys + (mixer.lora_rank * setting.v.bytes_per_element if has_values else 0)
    if isinstance(mixer, Attention):
        k_row, v_row = mixer.kv_heads * mixer.k_dim, mixer.kv_heads * mixer.v_dim
        return k_row * setting.k.bytes_per_element + v_row * setting.v.bytes_per_element
    return Fraction(0)
