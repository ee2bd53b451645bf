"""The command line of the server, and its meaning. Imports nothing heavy."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from reference_server.errors import ConfigError

SIZE_UNITS = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]+)")

AVAILABLE = {
    "model": ("tiny",),
    "allocator": ("paged",),
    "kv_dtype": ("auto", "fp32"),
    "preemption": ("recompute",),
    "device": ("cpu",),
}
"""What this version has. Other values are refused by name."""

LOG_LEVELS = ("debug", "info", "warning", "error")
INTEGRITY_VARIABLE = "REFERENCE_SERVER_CHECK_INTEGRITY"
MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A checked configuration."""

    model: str = "tiny"
    allocator: str = "paged"
    block_size: int = 16
    kv_memory_bytes: int = 256 * 1024**2
    kv_dtype: str = "auto"
    prefix_caching: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int = 8192
    preemption: str = "recompute"
    device: str = "cpu"
    threads: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    vllm_metric_names: bool = False
    seed: int = 0
    stop_with_parent: bool = False
    nice: int = 0
    log_level: str = "info"
    max_streams: int = 512
    check_integrity: bool = False


def default_threads() -> int:
    """One fewer than the CPUs this process may use: the rest serves HTTP and the load beside it."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    return max(1, cpus - 1)


def parse_size(text: str) -> int:
    """Bytes of `256MiB`, `1.5GB`, `4096B`. A unit is required: GiB and GB are two things."""
    match = _SIZE.fullmatch(text.strip())
    factor = SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write a number and a unit, as 256MiB or 1GB")
    return int(float(match[1]) * factor)


def parse_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig:
    """Raise `ConfigError` with one line for anything that cannot be served."""
    options = vars(_parser().parse_args(arguments))
    for name, values in AVAILABLE.items():
        if options[name] not in values:
            raise ConfigError(
                f"--{name.replace('_', '-')} {options[name]} is not available in this version; "
                f"available: {', '.join(values)}"
            )
    del options["json"], options["no_color"]
    key_variable = options.pop("api_key_env")
    if key_variable is not None:
        options["api_key"] = environment.get(key_variable)
        if not options["api_key"]:
            raise ConfigError(
                f"--api-key-env {key_variable}: that environment variable is not set or is empty"
            )
    refuse_open_host(options["host"], options["host"], options.get("api_key"))
    options["check_integrity"] = environment.get(INTEGRITY_VARIABLE, "") not in ("", "0")
    return ServerConfig(**options)


def refuse_open_host(host: str, address: str, api_key: str | None) -> None:
    """Raise `ConfigError` where others could reach `address`, which is `host` or what it resolves to.

    A name is let through: what it resolves to is asked about when it is bound.
    """
    try:
        if api_key or ipaddress.ip_address(address).is_loopback:
            return
    except ValueError:
        return
    raise ConfigError(
        f"--host {host} can be reached from outside; give a key with --api-key-env, or serve 127.0.0.1"
    )


def _host(text: str) -> str:
    """An address or a name; an IPv6 address also in the brackets that a URL has."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not host:
        raise argparse.ArgumentTypeError("an address or a name is needed, as 127.0.0.1")
    return host


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing usage: errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
        return int(text)

    return parse


def _block_size(text: str) -> int:
    size = _whole(1, 512)(text)
    if size & (size - 1):
        raise argparse.ArgumentTypeError(f"{size} is no power of two")
    return size


def _add_common(parser: argparse.ArgumentParser) -> None:
    """What every command of kvprobe takes; here they say how much is logged and in which form an
    error comes. (The line on stdout is JSON in any case, and nothing is coloured.)"""
    parser.add_argument("-q", "--quiet", dest="log_level", action="store_const", const="warning")
    parser.add_argument("-v", "--verbose", dest="log_level", action="store_const", const="debug")
    parser.add_argument("--json", action="store_true", help="errors as one JSON document on stdout")
    parser.add_argument("--no-color", action="store_true", help=argparse.SUPPRESS)


def _parser() -> argparse.ArgumentParser:
    defaults = ServerConfig(threads=default_threads())
    parser = _Parser(prog="kvprobe serve", description="The bundled reference server.", allow_abbrev=False)

    def add(name: str, help_text: str, **extra: Any) -> None:
        default = getattr(defaults, name.lstrip("-").replace("-", "_"))
        parser.add_argument(name, default=default, help=f"{help_text} (default: {default})", **extra)

    add("--model", "`tiny`, made from a seed")
    add("--allocator", "who owns KV memory")
    add("--block-size", "tokens a block", type=_block_size, metavar="TOKENS")
    parser.add_argument(
        "--kv-memory",
        dest="kv_memory_bytes",
        type=parse_size,
        default=defaults.kv_memory_bytes,
        metavar="SIZE",
        help="KV pool, with a unit (default: 256MiB)",
    )
    add("--kv-dtype", "format of the KV cache")
    parser.add_argument(
        "--no-prefix-caching", dest="prefix_caching", action="store_false", help="never reuse prefixes"
    )
    add("--max-num-seqs", "most sequences in a step", type=_whole(1, 4096), metavar="N")
    add("--max-num-batched-tokens", "most tokens in a step", type=_whole(1, 65536), metavar="N")
    add("--max-model-len", "longest prompt and output together", type=_whole(2, 32768), metavar="TOKENS")
    add("--preemption", "what a sequence does that gives its memory up")
    add("--device", "where to compute")
    add("--threads", "CPU threads of the matrix products", type=_whole(1, 1024), metavar="N")
    add("--host", "address to bind", type=_host)
    add("--port", "0 takes a free one", type=_whole(0, MAX_PORT), metavar="PORT")
    parser.add_argument(
        "--api-key-env", metavar="VAR", help="environment variable that holds the key clients must send"
    )
    add("--vllm-metric-names", "also export vLLM's metric names", action="store_true")
    add("--seed", "seed of the weights", type=_whole(0, 2**31 - 1), metavar="N")
    add("--stop-with-parent", "stop when stdin ends", action="store_true")
    add("--nice", "lower the process's priority by so much", type=_whole(0, 19), metavar="N")
    add("--log-level", "what to log on stderr", choices=LOG_LEVELS)
    _add_common(parser)
    add("--max-streams", "most requests open at once; more get 429", type=_whole(1, 65536), metavar="N")
    return parser
