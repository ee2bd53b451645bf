"""How each public calculator is asked: a few lines that run inside its own environment.

`code` defines `ask(case)`, which returns bytes a token of one GPU and tokens of the pool (null: bytes
available / bytes a token). A case has `config`, `tp`, `split` (ranks that share KV heads), `kv_bytes`,
`available`, `family`. Of several forms of one configuration (`configs`) the first that a peer answers counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A public calculator: `code` reads cases as JSON on stdin and prints answers as JSON."""

    name: str
    version: str
    asked: str
    code: str


LOOP = """
import json, sys, os, tempfile, logging, warnings
logging.disable(50); warnings.simplefilter("ignore")
cases = json.load(sys.stdin)
out = sys.stdout; sys.stdout = sys.stderr
def folder(case):
    where = tempfile.mkdtemp()
    with open(os.path.join(where, "config.json"), "w") as file:
        json.dump(case["config"], file)
    return where
def first_answer(case):
    failed = None
    for config in case["configs"]:
        try:
            per_token, tokens = ask({**case, "config": config})
            if not per_token:
                raise ValueError("it gives 0 or nothing for this configuration")
            tokens = int(tokens or case["available"] // per_token)
            return {"bytes_per_token": per_token, "tokens": tokens}
        except BaseException as error:
            failed = failed or {"reason": (type(error).__name__ + ": " + str(error))[:160]}
    return failed
answers = [first_answer(case) for case in cases]
json.dump(answers, out)
"""

PEERS = (
    Peer(
        name="kvfit",
        version="0.3.0",
        asked="architectures.estimate_cache, divided over TP as its planner does",
        code="""
from kvfit.architectures import estimate_cache
def ask(case):
    at = [estimate_cache(case["config"], context_tokens=n, kv_bytes=case["kv_bytes"]) for n in (65536, 32768)]
    split = min(case["tp"], at[0].kv_parallel_heads)
    return (at[0].total_bytes - at[1].total_bytes) / 32768 / split, None
""",
    ),
    Peer(
        name="kvcache-simulator",
        version="0.1.3",
        asked="calculator.calculate_cache_size, for models of its catalogue (by geometry)",
        code="""
from kvcache_sim import calculator
data = calculator.load_models_data()
def ask(case):
    config = case["config"].get("text_config", case["config"])
    def same(model):
        f = model.get("fields") or {}
        layers = f.get("num_hidden_layers") or f.get("layers")
        return (layers == config.get("num_hidden_layers")
            and f.get("hidden_size") in (None, config.get("hidden_size"))
            and f.get("num_key_value_heads") in (None, config.get("num_key_value_heads"))
            and f.get("head_dim") in (None, config.get("head_dim")))
    found = [m for m in data["models"] if same(m) and case["family"] in m["id"].replace("-", "")]
    if not found:
        raise LookupError("no model of this geometry in its catalogue, and it reads no config.json")
    name = {2: "bf16_fp16", 1: "fp8_int8"}.get(case["kv_bytes"])
    def total(tokens):
        return calculator.calculate_cache_size(found[0], tokens=tokens, precision=name).total_bytes
    size = [total(n) for n in (65536, 32768)]
    split = 1 if "mla" in str(found[0].get("formula")) else case["split"]
    return (size[0] - size[1]) / 32768 / split, None
""",
    ),
    Peer(
        name="aiconfigurator-core",
        version="0.12.0",
        asked="sdk.memory: its native model of vLLM 0.24.0 on H100, else its naive estimator",
        code="""
from aiconfigurator_core.sdk.memory import KVCacheEstimator, NaiveKVCacheEstimator
def ask(case):
    where = folder(case)
    mode = {1: "fp8", 2: None}.get(case["kv_bytes"])
    try:
        made = KVCacheEstimator.from_request(where, "h100_sxm", "vllm", "0.24.0", max_num_tokens=8192,
            max_batch_size=64, tp_size=case["tp"], kvcache_quant_mode=mode)
        model = made._breakdown["tokens_from_kv_bytes"].__self__
        size = [model.get_kvcache_bytes_per_sequence(n) for n in (65536, 32768)]
        return (size[0] - size[1]) / 32768, model.get_kvcache_max_tokens(case["available"])
    except Exception:
        made = NaiveKVCacheEstimator.from_model_path(
            where, tp_size=case["tp"], pp_size=1, allow_hf_config_download=False)
        scale = case["kv_bytes"] / made.dtype_bytes
        tokens = made.get_kvcache_max_tokens(case["available"] / scale)
        return (made.kv_bytes_per_token() or 0) * scale, tokens
""",
    ),
    Peer(
        name="hf-mem",
        version="0.5.6",
        asked="safetensors.kv_cache.compute_safetensors_kv_cache_size (it knows no TP: divided by TP)",
        code="""
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
def ask(case):
    config = case["config"].get("text_config", case["config"])
    name = {2: "BF16", 1: "F8_E4M3", 4: "F32"}[case["kv_bytes"]]
    size = [compute_safetensors_kv_cache_size(config, name, n) for n in (65536, 32768)]
    return (size[0] - size[1]) / 32768 / case["split"], None
""",
    ),
    Peer(
        name="hf-vram-calc",
        version="1.0.9",
        asked="VRAMCalculator.calculate_kv_cache_memory (GiB; it knows no TP for the cache: divided by TP)",
        code="""
from hf_vram_calc.calculator import VRAMCalculator
from hf_vram_calc.config import ConfigManager
from hf_vram_calc.models import ModelConfig
made = VRAMCalculator(ConfigManager())
def ask(case):
    c = case["config"].get("text_config", case["config"])
    model = ModelConfig(model_name="m", vocab_size=c["vocab_size"], hidden_size=c["hidden_size"],
        num_layers=c["num_hidden_layers"], num_attention_heads=c["num_attention_heads"],
        num_key_value_heads=c.get("num_key_value_heads"))
    name = {2: "bf16", 1: "fp8", 4: "fp32"}[case["kv_bytes"]]
    size = made.calculate_kv_cache_memory(model, name, 1, 32768) * 2**30
    return size / 32768 / case["split"], None
""",
    ),
)
