"""Starts that fail for a file, a library, a driver, a port, an account or an option, in the words of engines
and loaders; and processes that a signal of the processor ended. None of it is a matter of memory."""

from __future__ import annotations

from typing import Final

from kvprobe.observe.logs.readers.signature import Signature, signature, table_reader

_DRIVER = "a driver that does not fit"
_NO_GPU = "a GPU that the process cannot see"
_LIBRARY = "a library that is missing or too old"
_FILE = "a model file that is missing or broken"
_UNKNOWN_MODEL = "a model that this version does not know"
_ACCESS = "an account without access to the model"
_NETWORK = "a download that failed"
_PORT = "a port that is in use"
_OPTION = "an option that this version does not know"
_COMPILER = "a compiler that is missing or failed"

_WORDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("API mismatch: ", r"API mismatch: the client ", _DRIVER),
    ("driver on your system is too old", r"driver on your system is too old", _DRIVER),
    (
        "forward compatibility was attempted",
        r"forward compatibility was attempted on non[- ]supported",
        _DRIVER,
    ),
    ("unsupported display driver", r"unsupported display driver / cuda driver", _DRIVER),
    ("No CUDA GPUs are available", r"No CUDA GPUs are available", _NO_GPU),
    ("No HIP GPUs are available", r"No HIP GPUs are available", _NO_GPU),
    ("could not select device driver", r"could not select device driver", _NO_GPU),
    (
        "devices unavailable for",
        r"requested number of devices unavailable for (?:nvidia|amd)\.com/gpu",
        _NO_GPU,
    ),
    ("in the placement group", r"required GPUs exceeds the total number of available GPUs", _NO_GPU),
    (
        "Expected all tensors to be on the same device",
        r"RuntimeError: Expected all tensors to be on",
        "tensors that lie on different devices",
    ),
    ("nodes are available", r"\d nodes are available: .{0,60}Insufficient (?:nvidia|amd)\.com/gpu", _NO_GPU),
    ("nvidia-container-cli:", r"nvidia-container-cli: (?!.*memory)", _NO_GPU),
    ("Failed to infer device type", r"Failed to infer device type", _NO_GPU),
    (
        "cannot open shared object file",
        r"(?:[Ee]rror|cannot load).{0,300}cannot open shared object file",
        _LIBRARY,
    ),
    ("' not found (required by", r"version [`'](?:GLIBC|GLIBCXX|CXXABI)_\S{1,20}' not found", _LIBRARY),
    ("cannot import name", r"^\w{0,20}ImportError: cannot import name", _LIBRARY),
    ("Could not load library lib", r"Could not load library lib(?:cud|nv|roc)", _LIBRARY),
    ("failed to open GGUF file", r"failed to open GGUF file", _FILE),
    ("gguf_init_from_file", r"gguf_init_from_file\w{0,10}: (?:invalid magic|failed to|GGUFv\d+ is)", _FILE),
    ("model is corrupted or incomplete", r"model is corrupted or incomplete", _FILE),
    ("wrong number of tensors", r"wrong number of tensors; expected \d+, got \d+", _FILE),
    ("missing tensor '", r"missing tensor '[^']{1,120}'", _FILE),
    (
        "Error while deserializing header",
        r"deserializing header: \w{0,10}(?:Header|Metadata|header|incomplete)",
        _FILE,
    ),
    ("does not appear to have a file named", r"does not appear to have a file named", _FILE),
    ("' not found", r"^(?:Error|error): model ['\"][^'\"]{1,120}['\"] not found", _FILE),
    ("pull model manifest", r"pull model manifest: file does not exist", _FILE),
    ("unknown model architecture", r"unknown model architecture", _UNKNOWN_MODEL),
    ("unknown pre-tokenizer type", r"unknown pre-tokenizer type", _UNKNOWN_MODEL),
    ("of untagged enum", r"did not match any variant of untagged enum", _UNKNOWN_MODEL),
    ("Unsupported model type", r"Unsupported model type", _UNKNOWN_MODEL),
    ("Error: Unauthorized for url", r"40[13] Client Error: (?:Unauthorized|Forbidden) for url", _ACCESS),
    ("Client Error: Forbidden for url", r"403 Client Error: Forbidden for url", _ACCESS),
    ("CERTIFICATE_VERIFY_FAILED", r"CERTIFICATE_VERIFY_FAILED", _NETWORK),
    ("name resolution", r"Temporary failure in name resolution", _NETWORK),
    (
        "Max retries exceeded with url",
        r"host='[\w.]{0,20}(?:huggingface|modelscope|hf)[\w.-]{1,20}'",
        _NETWORK,
    ),
    ("SSLError", r"SSLError: HTTPSConnectionPool", _NETWORK),
    ("couldn't connect to 'http", r"couldn't connect to '?https?://\S{1,80} to load", _NETWORK),
    ("couldn't bind ", r"couldn't bind (?:HTTP |to )?(?:HTTP )?server socket", _PORT),
    ("Only one usage of each socket address", r"Only one usage of each socket address", _PORT),
    ("unrecognized arguments: ", r"error: unrecognized arguments: ", _OPTION),
    ("invalid argument: -", r"error: invalid argument: -", _OPTION),
    ("unexpected argument '-", r"error: unexpected argument '-", _OPTION),
    ("Failed to find C compiler", r"Failed to find C compiler", _COMPILER),
    ("Could not find nvcc", r"Could not find nvcc", _COMPILER),
    ("Python.h: No such file", r"Python\.h: No such file", _COMPILER),
    ("ptxas fatal", r"ptxas fatal", _COMPILER),
)
_BY_SIGNAL: Final = (
    r"(?:[Ss]ignals?[:.]? ?|[Cc]aught |[Rr]eceived |exit code:? -?\d{1,3} \(|-\d{1,2} \(|\*\*\* )"
)
"""A signal that came; a list of what may have happened ("due to SIGSEGV or …") is none."""
_SIGNALS: Final = (
    ("llegal instruction", r"(?:signal: |Fatal Python error: |^\s*)[Ii]llegal instruction\b", "SIGILL"),
    ("SIGILL", rf"{_BY_SIGNAL}SIGILL\b", "SIGILL"),
    (
        "egmentation fault",
        r"(?:signal: |Fatal Python error: |[Cc]aught signal 11 \(|line \d{1,6}: {1,4}\d{1,9} |^\s*)"
        r"[Ss]egmentation fault\b",
        "SIGSEGV",
    ),
    ("SIGSEGV", rf"{_BY_SIGNAL}SIGSEGV\b", "SIGSEGV"),
)


def _refused(anchor: str, pattern: str, kind: str) -> Signature:
    return signature("config_refused", anchor, pattern, kind=kind)


READERS: Final = (
    table_reader(
        "start_refused",
        None,
        (
            *(_refused(*words) for words in _WORDS),
            *(signature("crashed", anchor, pattern, kind=kind) for anchor, pattern, kind in _SIGNALS),
        ),
    ),
)
