"""vLLM V0 (until 0.10): every layer costs every token; CPU blocks beside the GPU's for swapping.

    block = block_size x bytes per token of all layers of the stage
    GPU blocks = available // block;  CPU blocks = swap space // block

Interleaved sliding layers were allocated like full ones, and states of Mamba layers lie outside of the
blocks. Read in `vllm/worker/{worker,cache_engine}.py` of 0.6.6.
"""

from __future__ import annotations

from fractions import Fraction

from kvprobe.model.layouts import attention_bytes_per_token, latent_bytes_per_token
from kvprobe.model.spec import Attention, Latent, Layer, State
from kvprobe.plan.engines.arithmetic import ceil_div, spread, whole_bytes
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.pool import ByteRange, Pool

BLOCK_TOKENS = 16
DEFAULT_SWAP_BYTES = 4 * 2**30


def v0_pool(setting: Setting, available: ByteRange) -> Pool:
    """What vLLM V0 makes of `available` bytes on every GPU."""
    block_size = setting.options.block_size or BLOCK_TOKENS
    stages = [
        whole_bytes(sum((_token_bytes(layer, setting) for layer in stage), Fraction(0)) * block_size)
        for stage in setting.stages()
    ]
    block_bytes = max(stages)
    asked = setting.options.swap_space_bytes
    swap_bytes = DEFAULT_SWAP_BYTES if asked is None else asked
    blocks, (low, high) = spread(available, lambda size: max(0, size) // block_bytes if block_bytes else 0)
    length = setting.max_model_len
    states = any(isinstance(mixer, State) for layer in setting.layers() for mixer in layer.mixers)
    notes = ("V0 keeps recurrent states outside of the blocks; they are not counted here",) if states else ()
    return Pool(
        engine="vllm",
        version=setting.version.text,
        fits=blocks > 0 and (length is None or length <= blocks * block_size),
        available_bytes=available.nominal,
        num_blocks=blocks,
        num_blocks_range=(low, high),
        block_size=block_size,
        block_bytes=block_bytes,
        groups=(1,),
        group_size=max(len(stage) for stage in setting.stages()),
        padding_layers=0,
        tokens=blocks * block_size,
        tokens_range=(low * block_size, high * block_size),
        log_line_tokens=blocks * block_size,
        log_line_tokens_range=(low * block_size, high * block_size),
        num_cpu_blocks=swap_bytes // block_bytes if block_bytes else 0,
        estimated_max_model_len=blocks * block_size,
        estimated_max_model_len_range=(low * block_size, high * block_size),
        needed_bytes=ceil_div(length, block_size) * block_bytes if length else None,
        max_requests=setting.options.max_num_seqs,
        assumptions=notes,
        reservation=lambda tokens: ceil_div(tokens, block_size),
    ).at_length(length)


def _token_bytes(layer: Layer, setting: Setting) -> Fraction:
    total = Fraction(0)
    for mixer in layer.mixers:
        if isinstance(mixer, Latent):
            total += latent_bytes_per_token(mixer, setting.k)
        elif isinstance(mixer, Attention):
            total += attention_bytes_per_token(mixer, setting.k, setting.v, tp=setting.options.tp)
    return total
