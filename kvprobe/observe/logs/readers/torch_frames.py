"""Frames of Python tracebacks that tell what the program was doing when it failed.

A traceback's outer frames name the phase (`profile_run`, `capture_model`), its inner ones the site
(`process_weights_after_loading`, `_get_prompt_logprobs_dict`). Plain and boxed tracebacks (`file.py:12 in
name`) are read. One event a frame; the rules join them.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of

SITES: Final[dict[str, tuple[str, ...]]] = {
    "load": (
        "load_model",
        "_load_model",
        "load_weights",
        "_initialize_model",
        "initialize_model",
        "_get_model",
        "create_weights",
        "from_pretrained",
        "_load_pretrained_model",
        "_load_state_dict_into_meta_model",
        "set_module_tensor_to_device",
        "_load_state_dict_into_model",
        "load_checkpoint_in_model",
        "load_checkpoint_and_dispatch",
        "dispatch_model",
        "caching_allocator_warmup",
        "_load_parameter_into_model",
        "load_state_dict",
        "load_model_weights",
        "get_model",
        "make_layers",
        "load_sharded_checkpoint",
        "safetensors_weights_iterator",
    ),
    "convert": (
        "process_weights_after_loading",
        "_process_weights_after_loading",
        "transform_w_q",
        "transform_w_s",
        "transform_w_zp",
        "gptq_marlin_repack",
        "awq_marlin_repack",
        "gptq_marlin_moe_repack",
        "awq_marlin_moe_repack",
        "marlin_moe_permute_scales",
        "prepare_fp8_layer_for_marlin",
        "prepare_moe_fp8_layer_for_marlin",
        "prepare_moe_fp4_layer_for_marlin",
        "requantize_with_max_scale",
        "per_tensor_dequantize",
        "convert_to_channelwise",
        "shuffle_weights",
        "quant_weights",
        "create_quantized_param",
        "quantize_weight",
        "merge_and_unload",
        "prepare_static_weights_for_trtllm_fp4_moe",
        "convert_moe_weights_to_flashinfer_trtllm_block_layout",
    ),
    "profile": (
        "profile_run",
        "_dummy_run",
        "determine_num_available_blocks",
        "determine_available_memory",
        "profile_num_available_blocks",
        "_profile_num_available_blocks",
        "profile_multimodal",
        "warmup",
        "dummy_run",
    ),
    "sampler_warmup": ("_dummy_sampler_run", "_dummy_pooler_run", "kernel_warmup", "flashinfer_autotune"),
    "kv_alloc": (
        "initialize_kv_cache",
        "initialize_kv_cache_tensors",
        "_allocate_kv_cache",
        "_allocate_kv_cache_tensors",
        "_init_cache_engine",
        "initialize_cache",
        "initialize_from_config",
        "init_memory_pool",
        "_create_buffers",
        "_reshape_kv_cache_tensors",
    ),
    "capture": (
        "capture_end",
        "capture_begin",
        "compile_or_warm_up_model",
        "warm_up_model",
        "capture_model",
        "_capture_model",
        "_capture_cudagraphs",
        "capture_one_batch_size",
        "init_cuda_graphs",
        "init_device_graphs",
        "graph_capture",
        "cuda_graph_warmup",
        "profile_cudagraph_memory",
    ),
    "serve": (
        "execute_model",
        "run_busy_loop",
        "_process_engine_step",
        "step_async",
        "engine_step",
        "run_engine_loop",
        "run_server",
        "event_loop_normal",
        "event_loop_overlap",
        "forward_batch_generation",
        "forward_thread_func_",
        "generate",
        "_run_engine",
        "chat",
        "chat_completion",
        "create_chat_completion",
        "execute_dummy_batch",
        "decode_token",
        "Decode",
        "Prefill",
    ),
    "engine_init": ("init_device", "init_worker_distributed_environment", "_init_executor"),
    "wake": ("wake_up", "create_and_map", "python_create_and_map"),
    "logits": (
        "compute_logits",
        "_get_logits",
        "compute_logprobs",
        "gather_logprobs",
        "_get_prompt_logprobs_dict",
        "get_logprobs",
        "_get_logprobs",
        "log_softmax",
        "get_prompt_logprobs",
        "compute_temp_top_p_normalized_logprobs",
        "get_logprob_and_cut_prompt",
    ),
    "prompt_logprobs": ("_get_prompt_logprobs_dict", "get_prompt_logprobs", "_compute_prompt_logprobs"),
    "sampling": ("sample_tokens", "apply_penalties", "apply_top_k_top_p", "_apply_top_k_top_p", "random_sample"),
    "multimodal": (
        "get_multimodal_embeddings",
        "embed_multimodal",
        "_execute_mm_encoder",
        "_process_image_input",
        "_process_video_input",
        "_process_audio_input",
        "_process_vision_input",
        "_process_image_pixels",
        "get_image_features",
        "get_video_features",
        "get_vision_embedding",
        "get_vision_hidden_states",
        "image_pixels_to_features",
        "_image_pixels_to_features",
        "extract_feature",
        "run_dp_sharded_mrope_vision_model",
        "_vision_forward",
        "dummy_encoder_data_for",
        "encode_images",
        "forward_vision",
        "pixel_values_to_features",
        "_parse_and_validate_image_input",
        "dummy_image_for_qwen2_vl",
    ),
    "attention": (
        "eager_attention_forward",
        "sdpa_attention_forward",
        "repeat_kv",
        "_attn",
        "naive_attention",
        "_vanilla_attention",
        "xops",
        "dot_product_attention",
    ),
    "workspace": (
        "_get_workspace_buffer",
        "_get_prefill_wrapper",
        "begin_forward",
        "init_flashinfer",
        "_get_trtllm_gen_workspace_buffer",
        "_ensure_workspace_size",
        "get_flashinfer_workspace_buffer",
    ),
    "collective": (
        "init_custom_ar",
        "create_shared_buffer",
        "ncclCommInitRank",
        "init_distributed_environment",
        "initialize_model_parallel",
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter",
        "_init_low_latency",
        "get_ep_group",
        "init_deepep",
        "nvshmem_create_tensor",
    ),
    "lora": (
        "create_lora_weights",
        "_create_lora_modules",
        "load_lora_adapter",
        "_load_adapter",
        "add_lora",
        "maybe_dummy_run_with_lora",
        "create_lora_manager",
        "_create_merged_loras_inplace",
    ),
    "training": (
        "backward",
        "training_step",
        "_inner_training_loop",
        "compute_loss",
        "optimizer_step",
        "_init_group",
        "_multi_tensor_adamw",
        "_fused_adamw",
        "step_with_optimizer",
        "fit",
    ),
    "draft": ("load_draft_model", "_load_draft_model", "propose", "load_eagle_model"),
    "pin": ("pin_memory", "_pin_memory"),
    "compile": ("autotune", "benchmark_all_configs", "_autotune", "do_bench"),
}
_SITE_OF: Final[dict[str, list[str]]] = {}
for _site, _names in SITES.items():
    for _name in _names:
        _SITE_OF.setdefault(_name, []).append(_site)
_FRAME: Final = re.compile(
    r"""(?:File "(?P<file>[^"]{1,300})", line \d{1,7}, in |(?P<boxed>[\w./@~-]{1,300}\.py):\d{1,7} in )(?P<name>\w{1,120})"""
)
_MOST_IN_A_LINE = 64
_VISION: Final = re.compile(
    r"(?:/(?:clip|siglip\w*|siglip2navit|intern_?vit|pixtral|moonvit|vision|visual|vit|idefics2_vision_model|mllama_vision|"
    r"\w{1,30}_vit|\w{1,30}_vision\w{0,20}|whisper|vision_encoder|\w{1,20}vision_tower)\.py)"
)
_VISION_CALL: Final = re.compile(
    r"self\.(?:visual|vision_tower|vision_model|vision_encoder|vpm|audio_tower|image_encoder|vision)\("
)
_ENGINES: Final = (
    ("/vllm_ascend/", "vllm"),
    ("/vllm/", "vllm"),
    ("/sglang/", "sglang"),
    ("/text_generation_server/", "tgi"),
    ("/lmdeploy/", "lmdeploy"),
    ("/tensorrt_llm/", "trtllm"),
)
_LIBRARIES: Final = (
    ("/transformers/", "transformers"),
    ("/accelerate/", "accelerate"),
    ("/deepspeed/", "deepspeed"),
    ("/peft/", "peft"),
    ("/diffusers/", "diffusers"),
)
_CACHE_UPDATE: Final = re.compile(r"cache_utils\.py")
_GRAPH_FILE: Final = re.compile(r"torch/cuda/graphs\.py|cuda_?graph\w{0,20}\.py")
_METHOD: Final = re.compile(r"(?:rror executing method|while processing method) ['\"]?(\w{1,80})")


def _read(line: Line, around: Around) -> list[Event]:
    text = line.text
    if _VISION_CALL.search(text):
        return [event_of(line, "frame", {"site": Value("multimodal"), "function": Value("vision tower")})]
    method = _METHOD.search(text)
    if method is not None:
        sites = _SITE_OF.get(method[1], ["other"])
        return [event_of(line, "frame", {"function": Value(method[1]), "site": Value(sites[0])}, engine="vllm")]
    events: list[Event] = []
    for found in islice(_FRAME.finditer(text), _MOST_IN_A_LINE):
        events += _events(line, found)
    return events


def _events(line: Line, found: re.Match[str]) -> list[Event]:
    """What one frame tells; collectors put a whole traceback into one line, so a line may hold several."""
    file = found["file"] or found["boxed"] or ""
    engine = next((name for part, name in _ENGINES if part in file), None)
    values = {"function": Value(found["name"]), "file": Value(file)}
    library = next((name for part, name in _LIBRARIES if part in file), None)
    if library:
        values["library"] = Value(library)
    sites = _sites(found["name"], file)
    if not sites and engine is None and library is None:
        return []
    return [event_of(line, "frame", {**values, "site": Value(s)}, engine=engine) for s in sites or ["other"]]


def _sites(name: str, file: str) -> list[str]:
    sites = list(_SITE_OF.get(name, ()))
    if _VISION.search(file) and name == "forward":
        sites.append("multimodal")
    if _CACHE_UPDATE.search(file):
        sites.append("kv_growth")
    if _GRAPH_FILE.search(file) and name in ("__exit__", "__enter__", "capture_end", "capture"):
        sites.append("capture")
    return sites


READERS: Final = (
    Reader(
        name="torch_frames",
        engine=None,
        anchors=(
            '", line ',
            "│ /",
            "self.visual(",
            "self.vision_tower(",
            "self.vision_model(",
            "self.vpm(",
            "self.audio_tower(",
            "rror executing method ",
            "while processing method ",
        ),
        read=_read,
    ),
)
