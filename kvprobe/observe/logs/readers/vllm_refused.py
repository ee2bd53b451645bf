"""Errors that stop a start or a request and have nothing to do with memory, though they stand in logs
that people search for "memory": limits of the model, the GPU's generation, files, packages."""

from __future__ import annotations

from typing import Final

from kvprobe.observe.logs.readers.signature import signature, table_reader

_ROWS: Final = (
    signature(
        "config_refused",
        "max_num_batched_tokens",
        r"max_num_batched_tokens \(\d+\) (?:is smaller than|must be greater than or equal to) "
        r"max_(?:model_len|num_seqs)",
        kind="a batch smaller than one request",
    ),
    signature(
        "context_refused",
        "maximum context length is",
        r"maximum context length is (?P<limit__tokens>\d+) tokens.{0,40}(?:you requested|your prompt "
        r"contains at least) (?P<asked__tokens>\d+) (?:input )?tokens",
    ),
    signature(
        "context_refused",
        "maximum context length of",
        r"maximum context length of (?P<limit__tokens>\d+) tokens.{0,40}requested a total of "
        r"(?P<asked__tokens>\d+) tokens",
    ),
    signature(
        "context_refused",
        "is greater than max_seq_len",
        r"[Pp]rompt length (?P<asked__tokens>\d+) is greater than max_seq_len (?P<limit__tokens>\d+)",
    ),
    signature(
        "context_refused",
        "is loaded with context length of only",
        r"keep the first (?P<asked__tokens>\d+) tokens .{0,80}context length of only (?P<limit__tokens>\d+)",
    ),
    signature(
        "context_refused",
        "is too long to fit into the model",
        r"length (?P<asked__tokens>\d+)\) is too long to fit into the model \(context length "
        r"(?P<limit__tokens>\d+)",
    ),
    signature(
        "context_refused",
        "context length is only",
        r"passed (?P<asked__tokens>\d+) input tokens .{0,80}context length is only (?P<limit__tokens>\d+)",
    ),
    signature(
        "context_refused",
        "longer than the maximum model length of",
        r"\(length (?P<asked__tokens>\d+)\) is longer than the maximum model length of "
        r"(?P<limit__tokens>\d+)",
    ),
    signature(
        "context_refused",
        "is too long and exceeds limit of",
        r"Input prompt \((?P<asked__tokens>\d+) tokens\) is too long and exceeds limit of "
        r"(?P<limit__tokens>\d+)",
    ),
    signature(
        "config_refused",
        "is greater than the derived max_model_len",
        r"max_model_len \((?P<asked__tokens>\d+)\) is greater than the derived max_model_len "
        r"\([^)]{0,60}?(?P<limit__tokens>\d+)",
        kind="a context above the model's own limit",
    ),
    signature(
        "config_refused",
        "must be divisible by",
        r"(?:attention heads|[Vv]ocab\w* size|[Hh]idden size|output_size|kv "
        r"heads|size_[nk]).{0,80}must be divisible by",
        kind="a parallel size that does not divide the model",
    ),
    signature(
        "config_refused",
        "is not divisible by",
        r"(?:output_partition_size|input_size_per_partition|[Ww]eight\w*).{0,60}is not divisible by",
        kind="a parallel size that does not divide a quantised layer",
    ),
    signature(
        "config_refused",
        "only supported on GPUs with compute capability",
        r"only supported on GPUs with compute capability",
        kind="a number format that this GPU does not have",
    ),
    signature(
        "config_refused", "Access to model", r"Access to model .{1,200} is restricted", kind="a gated model"
    ),
    signature("config_refused", "gated repo", r"gated repo", kind="a gated model"),
    signature(
        "config_refused", "Repository Not Found", r"Repository Not Found", kind="a model that was not found"
    ),
    signature(
        "config_refused", "is not a local folder", r"is not a local folder", kind="a model that was not found"
    ),
    signature(
        "config_refused",
        "does not recognize this architecture",
        r"does not recognize this architecture",
        kind="a model that this version does not know",
    ),
    signature(
        "config_refused",
        "are not supported for now",
        r"Model architectures .{1,200} are not supported",
        kind="a model that this version does not know",
    ),
    signature(
        "config_refused",
        "has no vLLM implementation",
        r"has no vLLM impl",
        kind="a model that this version does not know",
    ),
    signature(
        "config_refused", "ddress already in use", r"ddress already in use", kind="a port that is in use"
    ),
    signature(
        "config_refused",
        "Cannot re-initialize CUDA in forked subprocess",
        r"Cannot re-initialize CUDA",
        kind="a process that was forked after CUDA had started",
    ),
    signature(
        "config_refused",
        "Unknown quantization method",
        r"Unknown quantization",
        kind="an unknown quantisation",
    ),
    signature(
        "config_refused", "undefined symbol", r"undefined symbol", kind="binaries that do not fit together"
    ),
    signature(
        "config_refused",
        "is greater than max_lora_rank",
        r"LoRA rank \d{1,6} is greater than max_lora_rank",
        kind="an adapter whose rank is above the configured one",
    ),
    signature(
        "config_refused",
        "No space left on device",
        r"^(?!.{0,600}(?:shared memory|shm)).*No space left on device",
        kind="a full disk",
    ),
    signature("config_refused", "No module named", r"No module named", kind="a missing package"),
    signature(
        "config_refused",
        "exceeds the number of available GPUs",
        r"world size .{0,80}exceeds|exceeds the number of available GPUs",
        kind="more ranks than GPUs",
    ),
    signature(
        "config_refused",
        "trust_remote_code=True",
        r"(?:requires you to execute|contains custom code).{0,400}trust_remote_code",
        kind="code that was not trusted",
    ),
)

READERS: Final = (table_reader("vllm_refused", None, _ROWS),)
