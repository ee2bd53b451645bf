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
from kvprobe.observe.logs.readers.torch_sites import SITES

_SITE_OF: Final[dict[str, list[str]]] = {}
for _site, _names in SITES.items():
    for _name in _names:
        _SITE_OF.setdefault(_name, []).append(_site)
_FRAME: Final = re.compile(
    r'(?:(?:File "|^)(?P<file>[^"\s][^"]{0,299})", line \d{1,7}, in |'
    r"│ {0,3}(?P<boxed>/[\w./@~-]{1,300}\.py):\d{1,7} in )"
    r"(?P<name>\w{1,120})"
)
_PATH_HEAD: Final = re.compile(r'File "([^"]{1,300})$')
_MOST_IN_A_LINE = 64
_VISION: Final = re.compile(
    r"(?:/(?:clip|siglip\w*|siglip2navit|intern_?vit|pixtral|moonvit|vision|visual|vit|idefics2_vision_model|mllama_vision|"
    r"\w{1,30}_vit|vit_attn\w{0,20}|\w{1,30}_vision\w{0,20}|whisper|vision_encoder|\w{1,20}vision_tower)\.py)"
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
_WARM_UP_FILE: Final = re.compile(r"(?:^|/)warmup/\w{0,40}warmup\.py$")
"""vLLM's kernel warm-up, after its pool is in place."""
_CACHE_UPDATE: Final = re.compile(r"cache_utils\.py")
_EXLLAMA_CACHE: Final = re.compile(r"/exllama(?:v\d)?/(?:cache/)?\w{0,20}(?:cache|model|fp16|quant)\.py$")
"""ExLlama makes its cache for the longest context at once."""
_GRAPH_FILE: Final = re.compile(r"torch/cuda/graphs\.py|cuda_?graph\w{0,20}\.py")
_METHOD: Final = re.compile(r"(?:rror executing method|while processing method) ['\"]?(\w{1,80})")


_SOURCE_NAMES: Final = (
    "profile_run",
    "determine_available_memory",
    "determine_num_available_blocks",
    "capture_model",
    "gptq_marlin_repack",
    "awq_marlin_repack",
    "process_weights_after_loading",
    "_dummy_sampler_run",
    "initialize_kv_cache",
    "_get_prompt_logprobs_dict",
    "create_weights",
)
"""Calls that no prose contains: in a cut traceback the line of code may be all that is left of a frame."""
_SOURCE: Final = re.compile(rf"(?:^|[\w.\]) =(]\.|= ?|return )({'|'.join(_SOURCE_NAMES)})\(")


def _read(line: Line, around: Around) -> list[Event]:
    text = line.text
    if _VISION_CALL.search(text):
        return [event_of(line, "frame", {"site": Value("multimodal"), "function": Value("vision tower")})]
    if "torch.cat([past_key_value" in text:
        return [event_of(line, "frame", {"site": Value("kv_growth"), "function": Value("torch.cat")})]
    if "sampling_metadata=dummy_metadata" in text:
        values = {"site": Value("sampler_warmup"), "function": Value("_dummy_sampler_run")}
        return [event_of(line, "frame", values, engine="vllm")]
    method = _METHOD.search(text)
    if method is not None:
        sites = _SITE_OF.get(method[1], ["other"])
        return [
            event_of(line, "frame", {"function": Value(method[1]), "site": Value(sites[0])}, engine="vllm")
        ]
    source = _SOURCE.search(text) if '", line ' not in text else None
    if source is not None:
        sites = _SITE_OF[source[1]]
        return [event_of(line, "frame", {"function": Value(source[1]), "site": Value(s)}) for s in sites]
    events: list[Event] = []
    for found in islice(_FRAME.finditer(text), _MOST_IN_A_LINE):
        head = _broken_off(around) if found.start() == 0 and text[:1] != "F" else ""
        events += _events(line, found, head)
    return events


def _broken_off(around: Around) -> str:
    """The first part of a path that a terminal broke: the end of the line before."""
    above = around.before(1)
    found = _PATH_HEAD.search(above[0].text) if above else None
    return found[1] if found else ""


def _events(line: Line, found: re.Match[str], head: str = "") -> list[Event]:
    """What one frame tells; collectors put a whole traceback into one line, so a line may hold several."""
    file = head + (found["file"] or found["boxed"] or "")
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
    if "workspace" in name and "workspace" not in sites:
        sites.append("workspace")
    if _WARM_UP_FILE.search(file) and name not in ("__init__", "wrapper"):
        sites.append("sampler_warmup")
    if name == "start" and file.endswith("/engine/multiprocessing/engine.py"):
        sites.append("serve")  # V0's engine process: it is built before
    if "/sample/" in file and not sites:
        sites.append("sampling")
    if _VISION.search(file) and (name == "forward" or name.startswith("vit_")):
        sites.append("multimodal")
    if file.endswith("torch/nn/modules/module.py") and name in ("to", "_apply", "convert", "cuda"):
        sites.append("load")
    if name == "__init__" and "/model_executor/models/" in file:
        sites.append("load")  # a model's layers are made: vLLM and others allocate the weights here
    if _CACHE_UPDATE.search(file):
        sites.append("static_cache" if name == "__init__" else "kv_growth")
    if _EXLLAMA_CACHE.search(file) and name == "__init__":
        sites.append("static_cache")
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
            "torch.cat([past_key_value",
            "rror executing method ",
            "while processing method ",
            "sampling_metadata=dummy_metadata",
            *(f"{name}(" for name in _SOURCE_NAMES),
        ),
        read=_read,
    ),
)
