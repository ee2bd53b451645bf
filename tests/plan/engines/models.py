"""Small models of each layout, as specs, for tests of the allocators alone."""

from __future__ import annotations

from kvprobe.model.spec import Attention, Latent, Layer, Mixer, ModelSpec, State, StatePart


def full(kv_heads: int = 8, dim: int = 128) -> Attention:
    return Attention(kind="full", kv_heads=kv_heads, k_dim=dim, v_dim=dim, query_heads=32)


def sliding(window: int = 1024, kv_heads: int = 8, dim: int = 128) -> Attention:
    return Attention(
        kind="sliding", kv_heads=kv_heads, k_dim=dim, v_dim=dim, query_heads=32, window_tokens=window
    )


def chunked(chunk: int = 8192) -> Attention:
    return Attention(kind="chunked", kv_heads=8, k_dim=128, v_dim=128, query_heads=40, window_tokens=chunk)


def cross(kv_heads: int = 20, dim: int = 64) -> Attention:
    return Attention(kind="cross", kv_heads=kv_heads, k_dim=dim, v_dim=dim, query_heads=20)


def latent(indexer_dim: int | None = None) -> Latent:
    plain = Attention(kind="full", kv_heads=16, k_dim=192, v_dim=128, query_heads=16)
    return Latent(lora_rank=512, rope_dim=64, plain=plain, indexer_dim=indexer_dim)


def delta_net(value_heads: int = 32, key_heads: int = 16) -> State:
    channels = 2 * key_heads * 128 + value_heads * 128
    return State(
        kind="gated_delta_net",
        parts=(
            StatePart(name="conv", elements=channels * 3, rows=3),
            StatePart(name="ssm", elements=value_heads * 128 * 128, dtype="float32", dtype_stated=True),
        ),
        divisors=(key_heads, value_heads),
    )


def model(
    *mixers: Mixer | tuple[Mixer, ...], family: str = "qwen3_5_text", encoder_tokens: int | None = None
) -> ModelSpec:
    """A model of these layers, in order."""
    layers = tuple(
        Layer(index=index, mixers=mixer if isinstance(mixer, tuple) else (mixer,))
        for index, mixer in enumerate(mixers)
    )
    return ModelSpec(
        name="test",
        architecture="TestForCausalLM",
        family=family,
        layers=layers,
        hidden_size=4096,
        query_heads=32,
        vocab_size=32000,
        max_position_tokens=131072,
        dtype="bfloat16",
        source="test",
        encoder_tokens=encoder_tokens,
    )


GEMMA = model(*([sliding()] * 5 + [full()]) * 4, family="gemma3_text")
HYBRID = model(*([delta_net()] * 3 + [full(2, 256)]) * 4)
LLAMA = model(*[full()] * 8, family="llama")
LLAMA4 = model(*([chunked()] * 3 + [full()]) * 4, family="llama4_text")
MISTRAL = model(*[sliding(4096)] * 8, family="mistral")
SPARSE = model(*[latent(128)] * 6, family="deepseek_v32")
VARYING = model(full(2, 64), full(4, 64), full(8, 64), family="openelm")
WHISPER = model(*[(full(20, 64), cross())] * 4, family="whisper", encoder_tokens=1500)
PURE_STATE = model(*[delta_net()] * 4)
EVERY = {
    "gemma": GEMMA,
    "hybrid": HYBRID,
    "llama": LLAMA,
    "llama4": LLAMA4,
    "mistral": MISTRAL,
    "sparse": SPARSE,
    "varying": VARYING,
    "whisper": WHISPER,
    "pure_state": PURE_STATE,
}
