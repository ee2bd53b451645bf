"""What ends a start and is no matter of memory, said aloud; and that a memory fact outranks it."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, finding, oom, traceback

TRACE = 'Traceback (most recent call last):\n  File "/opt/x/app.py", line 12, in main\n    go()\n'
HUB = "https://huggingface.co/acme/x/resolve/main/config.json"


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACE}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, invalid usage\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000",
        "Starting worker\nFatal Python error: Illegal instruction\nCurrent thread 0x00007f",
        "$ ./llama-cli -m q.gguf\nIllegal instruction (core dumped)",
        'level=ERROR msg="error loading llama server" error="llama runner process has terminated: '
        "signal: illegal "
        'instruction (core dumped)"',
        "NVRM: API mismatch: the client has the version 551.54.15, but\n"
        "NVRM: this kernel module has the version 536.183.01.",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 561.35",
        f"{TRACE}RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address "
        "already in use",
        "main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
        "OSError: acme/none is not a local folder and is not a valid model identifier listed on the hub",
        "Error: model 'llama9:1b' not found",
        "gguf_init_from_file: failed to open GGUF file '/m/x.gguf'",
        "llama_model_load: error loading model: tensor 'x' data is not within the file bounds, model is "
        "corrupted "
        "or incomplete",
        "llama_model_load: error loading model: unknown model architecture: 'newarch'",
        f"{TRACE}huggingface_hub.errors.GatedRepoError: 401 Client Error.\nCannot access gated repo for "
        f"url {HUB}.",
        f"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: {HUB}",
        f"{TRACE}ImportError: cannot import name 'foo' from 'transformers' (/opt/x/transformers/__init__.py)",
        "ImportError: /opt/x/vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "python: /lib/libc.so.6: version `GLIBC_2.39' not found (required by /opt/x.so)",
        "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: No CUDA GPUs are available",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        f"{TRACE}requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max "
        "retries",
        "server.py: error: unrecognized arguments: --kv-cache-typ fp8",
        f"{TRACE}RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    ],
)
def test_another_cause_is_named(text: str) -> None:
    answer = diagnose(text)
    assert answer.primary == "not_memory"
    assert answer.findings[0].confidence in ("likely", "suspected")


def test_a_segfault_without_a_word_of_memory_is_only_suspected() -> None:
    found = finding(diagnose("main: loading model\nSegmentation fault (core dumped)"), "not_memory")
    assert found.confidence == "suspected"


FULL = oom("180.00 MiB", 44.42, "20.00 MiB", 43.9, "10.00 MiB", process=44.3)


@pytest.mark.parametrize(
    "after",
    [
        "Segmentation fault (core dumped)",
        "OSError: [Errno 98] address already in use",
        f"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: {HUB}",
    ],
)
def test_a_memory_fact_outranks(after: str) -> None:
    answer = diagnose(f"{traceback('load_model', 'create_weights')}\n{FULL}\n{after}")
    assert answer.primary == "weights_plus_fixed_too_large"
    refused = (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9100.25 MiB on device 0: cudaMalloc "
        "failed: out "
        f"of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\n{after}"
    )
    assert diagnose(refused).primary != "not_memory"


def test_what_the_engine_outlived_is_no_cause() -> None:
    text = (
        f"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: {HUB}\n"
        "INFO 02-11 10:00:05 [kv_cache_utils.py:1087] GPU KV cache size: 142,592 tokens\n"
        "INFO 02-11 10:00:09 [launcher.py:34] Application startup complete."
    )
    assert diagnose(text).primary == "healthy_baseline"
