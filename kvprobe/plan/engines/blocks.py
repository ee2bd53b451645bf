"""Engines with plain equal blocks: TensorRT-LLM, LMDeploy, the bundled reference server.

    block = tokens of a block x bytes per token of all layers of the stage

They differ in the size of a block, in how the last one is rounded, and in what they keep back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from kvprobe.model.dtypes import element_bytes
from kvprobe.model.layouts import layer_bytes_per_token
from kvprobe.model.spec import Latent, Mixer, State
from kvprobe.plan.engines.arithmetic import ceil_div, spread, whole_bytes
from kvprobe.plan.engines.cached import windows_of
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.pool import ByteRange, Pool

TRTLLM_BLOCK_TOKENS, TRTLLM_OLD_BLOCK_TOKENS = 32, 64
LMDEPLOY_BLOCK_TOKENS, LMDEPLOY_OLD_BLOCK_TOKENS = 64, 128
REFERENCE_BLOCK_TOKENS = 16


def trtllm_pool(setting: Setting, available: ByteRange) -> Pool:
    """TensorRT-LLM: the tokens that fit, rounded *up* to a block.

    `available` is what is allocated: `kv_cache_free_gpu_mem_fraction` of the memory free after the engine
    is loaded. Rounding: NVIDIA's answer in TensorRT-LLM issue 224; seen in issue 2268 (631 blocks of 64
    where 630.4 fit).
    """
    old = setting.version.release < (0, 18, 0)
    block = setting.options.block_size or (TRTLLM_OLD_BLOCK_TOKENS if old else TRTLLM_BLOCK_TOKENS)
    token_bytes = _token_bytes(setting)

    def blocks(size: int) -> int:
        return ceil_div(int(max(0, size) // token_bytes), block) if token_bytes else 0

    return _pool("trtllm", setting, available, block, blocks)


def lmdeploy_pool(setting: Setting, available: ByteRange) -> Pool:
    """LMDeploy: whole blocks of `cache_max_entry_count` of the free memory (`available`).

    Blocks were 128 tokens in 0.1 and 0.2, 64 since (`cache_block_seq_len`). With int8 (`quant_policy=8`)
    every head keeps a scale and a zero for each token, of K and of V (`get_cache_block_size` of 0.9.0).
    """
    old = setting.version.release < (0, 3, 0)
    block = setting.options.block_size or (LMDEPLOY_OLD_BLOCK_TOKENS if old else LMDEPLOY_BLOCK_TOKENS)
    if setting.k.name == "int8":
        pair = 2 * element_bytes(setting.spec.dtype)
        scaled = replace(setting.k, scale_bytes_per_head_token=pair)
        setting = replace(setting, k=scaled, v=replace(setting.v, scale_bytes_per_head_token=pair))
    return _pool("lmdeploy", setting, available, block, _WholeBlocks(setting, block))


def reference_pool(setting: Setting, available: ByteRange) -> Pool:
    """The bundled server: blocks like vLLM's, one of them the null block, which its tokens leave out."""
    block = setting.options.block_size or REFERENCE_BLOCK_TOKENS
    return _pool("reference", setting, available, block, _WholeBlocks(setting, block), null_blocks=1)


class _WholeBlocks:
    """Blocks that fit an amount of bytes, none of them broken."""

    def __init__(self, setting: Setting, block: int) -> None:
        self._block_bytes = whole_bytes(_token_bytes(setting) * block)

    def __call__(self, size: int) -> int:
        return max(0, size) // self._block_bytes if self._block_bytes else 0


def _token_bytes(setting: Setting) -> Fraction:
    """Bytes of a token on the largest stage; these engines keep sliding layers like full ones."""
    return max(
        sum(
            (layer_bytes_per_token(layer, setting.k, setting.v, tp=setting.options.tp) for layer in stage),
            Fraction(0),
        )
        for stage in setting.stages()
    )


def _pool(
    engine: str,
    setting: Setting,
    available: ByteRange,
    block: int,
    blocks_of: Callable[[int], int],
    null_blocks: int = 0,
) -> Pool:
    blocks, (low, high) = spread(available, blocks_of)
    usable, usable_low, usable_high = (max(0, count - null_blocks) for count in (blocks, low, high))
    length = setting.max_model_len
    per_request = ceil_div(length, block) if length else None
    return Pool(
        engine=engine,
        version=setting.version.text,
        fits=usable > 0 and (per_request is None or per_request <= usable),
        available_bytes=available.nominal,
        num_blocks=blocks,
        num_blocks_range=(low, high),
        null_blocks=null_blocks,
        block_size=block,
        block_bytes=whole_bytes(_token_bytes(setting) * block),
        groups=(1,),
        padding_layers=0,
        tokens=usable * block,
        tokens_range=(usable_low * block, usable_high * block),
        log_line_tokens=usable * block,
        log_line_tokens_range=(usable_low * block, usable_high * block),
        max_model_len=length,
        max_concurrency=usable / per_request if per_request else None,
        max_concurrency_range=(usable_low / per_request, usable_high / per_request) if per_request else None,
        blocks_per_request=per_request,
        max_requests=setting.options.max_num_seqs,
        estimated_max_model_len=usable * block,
        assumptions=_notes(setting),
        reservation=lambda tokens: ceil_div(tokens, block),
    )


def _notes(setting: Setting) -> tuple[str, ...]:
    mixers: list[Mixer] = [mixer for layer in setting.layers() for mixer in layer.mixers]
    notes = []
    if any(isinstance(mixer, State) for mixer in mixers):
        notes.append("recurrent states lie outside of these blocks and are not counted here")
    if windows_of(setting.spec):
        notes.append("sliding layers are counted like full ones; a setting of the engine may bound them")
    if any(isinstance(mixer, Latent) for mixer in mixers):
        notes.append("MLA layers keep the latent vector, on every rank")
    return tuple(notes)
