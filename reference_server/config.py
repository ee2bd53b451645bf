"""The command line of the server, and its meaning. Imports nothing heavy."""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from reference_server.ailments import NAMES, afflict
from reference_server.errors import ConfigError
from reference_server.option_values import block_size, host, parse_size, seconds, utilisation, whole

ALLOCATORS = ("paged", "paged-reserve", "contiguous", "contiguous-exact")
KV_DTYPES = ("auto", "fp32", "bf16", "fp16", "fp8", "int8")
PREEMPTIONS = ("recompute", "swap")
DEVICES = ("cpu", "cuda")
ATTENTIONS = ("auto", "sdpa", "native", "varlen", "triton")
CONTIGUOUS = ("contiguous", "contiguous-exact")
"""Allocators of regions: cut to the token, nothing shared."""

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
    pool_from_device: bool = False
    """Size the pool by what the device has left, and not by `kv_memory_bytes`."""
    device_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    swap_space_bytes: int = 64 * 1024**2
    kv_dtype: str = "auto"
    prefix_caching: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int = 8192
    context_of_model: bool = False
    """Where the model's context is shorter than `max_model_len`, take the model's."""
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
    request_deadline_s: float = 600.0
    attention: str = "auto"
    ailments: tuple[str, ...] = ()
    check_integrity: bool = False

    @property
    def served_model(self) -> str:
        """The name that clients ask for: a directory's last part."""
        return Path(self.model).name or self.model

    @property
    def in_regions(self) -> bool:
        """Whether each sequence lies in one piece."""
        return self.allocator in CONTIGUOUS

    @property
    def slot_block_size(self) -> int:
        """Tokens of a block as the allocator and attention see it."""
        return 1 if self.in_regions else self.block_size


def default_threads() -> int:
    """One fewer than the CPUs this process may use: the rest serves HTTP and the load beside it."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    return max(1, cpus - 1)


def parse_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig:
    """Raise `ConfigError` with one line for anything that cannot be served."""
    options = vars(_parser().parse_args(arguments))
    options["context_of_model"] = options["max_model_len"] is None
    if options["max_model_len"] is None:
        del options["max_model_len"]
    options["ailments"] = tuple(dict.fromkeys(options["ailments"]))
    _choose_pool(options)
    del options["json"], options["no_color"]
    key_variable = options.pop("api_key_env")
    if key_variable is not None:
        options["api_key"] = _key(key_variable, environment)
    refuse_open_host(options["host"], options["host"], options.get("api_key"))
    options["check_integrity"] = environment.get(INTEGRITY_VARIABLE, "") not in ("", "0")
    return afflict(ServerConfig(**options))


def _key(variable: str, environment: Mapping[str, str]) -> str:
    """A key that a header can carry: without spaces at its ends, which headers lose."""
    key = environment.get(variable, "").strip()
    if not key:
        raise ConfigError(f"--api-key-env {variable}: that environment variable is not set or is empty")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"--api-key-env {variable}: a header cannot carry that key; use printable ASCII")
    return key


def _choose_pool(options: dict[str, Any]) -> None:
    """The pool has a size of its own, or what the device has left."""
    utilisation = options["gpu_memory_utilization"]
    if utilisation is None:
        del options["gpu_memory_utilization"]
    if options["kv_memory_bytes"] is not None:
        if options["device_memory_bytes"] is not None:
            raise ConfigError("give --kv-memory or --device-memory, not both")
        if utilisation is not None:
            raise ConfigError(
                "--gpu-memory-utilization is a share of --device-memory; with --kv-memory the pool's size is "
                "given, so leave one of the two out"
            )
        return
    del options["kv_memory_bytes"]
    options["pool_from_device"] = options["device"] == "cuda" or options["device_memory_bytes"] is not None


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


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing usage: errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


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

    _add_engine(parser, add, defaults)
    _add_service(parser, add, defaults)
    _add_common(parser)
    return parser


Add = Callable[..., None]
"""Adds an option whose default is the configuration's field of that name."""


def _add_engine(parser: argparse.ArgumentParser, add: Add, defaults: ServerConfig) -> None:
    """Model, memory and computing."""
    add("--model", "`tiny`, made from a seed, or a directory of a real model", metavar="DIR")
    add("--allocator", "who owns KV memory", choices=ALLOCATORS)
    add(
        "--block-size",
        "tokens a block, or by which a region grows",
        type=block_size,
        metavar="TOKENS",
    )
    _add_memory(parser)
    parser.add_argument(
        "--gpu-memory-utilization",
        type=utilisation,
        metavar="U",
        help="share of the device's memory to use, with --device-memory or CUDA "
        f"(default: {defaults.gpu_memory_utilization})",
    )
    add("--kv-dtype", "format of the KV cache", choices=KV_DTYPES)
    parser.add_argument(
        "--no-prefix-caching", dest="prefix_caching", action="store_false", help="never reuse prefixes"
    )
    add("--max-num-seqs", "most sequences in a step", type=whole(1, 4096), metavar="N")
    add("--max-num-batched-tokens", "most tokens in a step", type=whole(1, 65536), metavar="N")
    parser.add_argument(
        "--max-model-len",
        type=whole(2, 1_048_576),
        metavar="TOKENS",
        help=f"longest prompt and output together (default: {defaults.max_model_len} or the model's)",
    )
    add("--preemption", "what a sequence does that gives its memory up", choices=PREEMPTIONS)
    add("--device", "where to compute", choices=DEVICES)
    add("--attention", "which kernel reads the cache", choices=ATTENTIONS)
    add("--threads", "CPU threads of the matrix products", type=whole(1, 1024), metavar="N")
    add("--seed", "seed of the weights", type=whole(0, 2**31 - 1), metavar="N")
    parser.add_argument(
        "--ailment",
        dest="ailments",
        action="append",
        choices=NAMES,
        default=[],
        metavar="NAME",
        help=f"make the server ill in a known way; repeatable: {', '.join(NAMES)}",
    )


def _add_service(parser: argparse.ArgumentParser, add: Add, defaults: ServerConfig) -> None:
    """Address, key, process and limits."""
    add("--host", "address to bind", type=host)
    add("--port", "0 takes a free one", type=whole(0, MAX_PORT), metavar="PORT")
    parser.add_argument(
        "--api-key-env", metavar="VAR", help="environment variable that holds the key clients must send"
    )
    add("--vllm-metric-names", "also export vLLM's metric names", action="store_true")
    add("--stop-with-parent", "stop when stdin ends", action="store_true")
    add("--nice", "lower the process's priority by so much", type=whole(0, 19), metavar="N")
    add("--log-level", "what to log on stderr", choices=LOG_LEVELS)
    add("--max-streams", "most requests open at once; more get 429", type=whole(1, 65536), metavar="N")
    parser.add_argument(
        "--request-deadline",
        dest="request_deadline_s",
        type=seconds,
        default=defaults.request_deadline_s,
        metavar="SECONDS",
        help=f"most time from arrival to last token (default: {defaults.request_deadline_s:g})",
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    """Sizes without a default of their own: which are given decides where the pool comes from."""
    sizes = {
        "--kv-memory": ("kv_memory_bytes", None, "KV pool, with a unit (default: 256MiB)"),
        "--device-memory": (
            "device_memory_bytes",
            None,
            "memory of the device, weights and all; the KV pool is what is left of its share",
        ),
        "--swap-space": (
            "swap_space_bytes",
            ServerConfig.__dataclass_fields__["swap_space_bytes"].default,
            "host memory for --preemption swap (default: 64MiB)",
        ),
    }
    for name, (field, default, help_text) in sizes.items():
        parser.add_argument(
            name, dest=field, type=parse_size, default=default, metavar="SIZE", help=help_text
        )
