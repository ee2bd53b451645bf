"""The options of a plan as they were written, and what they mean; every bad one is named at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from kvprobe.errors import Problem, UsageError
from kvprobe.model.spec import ModelSpec
from kvprobe.plan.engines import ENGINES
from kvprobe.plan.lengths import Lengths, parse_lengths
from kvprobe.plan.pool import ByteRange, EngineOptions
from kvprobe.plan.request import DEFAULT_PREEMPTION, PlanRequest
from kvprobe.plan.sizes import has_unit, is_decimal_unit, is_size, parse_exact, parse_size
from kvprobe.summary.units import size

if TYPE_CHECKING:
    from kvprobe.model.devices import Device

T = TypeVar("T")
Size = str | int
"""`14GiB`, or bytes as a whole number (Python only)."""
MAX_COUNT = 2**40
MAX_RANKS = 1024


@dataclass(slots=True, kw_only=True)
class Settings:
    """What `kvprobe plan` and `kvprobe.plan()` take, by the names of the options. Null: not said."""

    gpu: Size | None = None
    weights: Size | None = None
    overhead: Size | None = None
    margin: Size | None = None
    engine: str | None = None
    engine_version: str | None = None
    available_kv: Size | None = None
    gpu_memory_utilization: str | float | None = None
    non_torch: Size | None = None
    activation_peak: Size | None = None
    graphs: Size | None = None
    free_memory: Size | None = None
    kv_fraction: str | float | None = None
    mem_fraction_static: str | float | None = None
    swa_full_tokens_ratio: str | float | None = None
    mamba_full_memory_ratio: str | float | None = None
    max_running_requests: str | int | None = None
    swap_space: Size | None = None
    tp: str | int | None = None
    pp: str | int | None = None
    kv_dtype: str | None = None
    kv_dtype_k: str | None = None
    kv_dtype_v: str | None = None
    block_size: str | int | None = None
    max_model_len: str | int | None = None
    max_num_batched_tokens: str | int | None = None
    max_num_seqs: str | int | None = None
    prefix_caching: str | bool | None = None
    mamba_cache_mode: str | None = None
    speculative_tokens: str | int | None = None
    draft_layers: str | int | None = None
    ctx: str | int | None = None
    parallel: str | int | None = None
    ubatch: str | int | None = None
    kv_unified: bool | None = None
    swa_full: bool = False
    tokens: str | int | None = None
    lengths: str | None = None
    shared_prefix: str | int | None = None
    price_per_hour: str | float | None = None
    output_tokens_per_s: str | float | None = None
    preemption_probability: str | float | None = None
    running: str | None = None
    claim: Size | None = None


@dataclass(slots=True)
class _Reader:
    """Reads options one by one and keeps the problems for the end."""

    settings: Settings
    problems: list[Problem] = field(default_factory=list)

    def size(self, name: str, *, exact: bool = False) -> ByteRange | None:
        value = getattr(self.settings, name)
        if value is None:
            return None
        option = _option(name)
        if isinstance(value, int) and not isinstance(value, bool):
            if value >= 0:
                return ByteRange.of(value)
            self._bad(option, f"{value} bytes", "a size of 0 or more")
            return None
        parse = parse_exact if exact else parse_size
        return self.attempt(lambda: parse(str(value), option))

    def count(self, name: str, least: int = 1, most: int = MAX_COUNT) -> int | None:
        value = getattr(self.settings, name)
        if value is None:
            return None
        text = str(value).strip().replace("_", "")
        if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
            self._bad(_option(name), f"`{value}`", f"a whole number from {least} to {most}")
            return None
        return int(text)

    def number(self, name: str, low: float, high: float, what: str) -> float | None:
        """A number above `low` and not above `high`."""
        value = getattr(self.settings, name)
        if value is None:
            return None
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if low < found <= high:
            return found
        self._bad(_option(name), f"`{value}`", what)
        return None

    def word(self, name: str, known: tuple[str, ...]) -> str | None:
        """One of the known words, in any case of its letters."""
        value = getattr(self.settings, name)
        if value is None:
            return None
        text = str(value).strip().lower()
        if text in known:
            return text
        near = get_close_matches(text, known, n=1)
        listed = f"one of: {', '.join(known)}"
        fix = f"did you mean `{near[0]}`? known: {', '.join(known)}" if near else f"write {listed}"
        self.problems.append(Problem("bad_value", f"{_option(name)}: `{value}` is not {listed}", fix))
        return None

    def attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except UsageError as error:
            self.problems += error.problems
            return None

    def _bad(self, option: str, got: str, wanted: str) -> None:
        self.problems.append(Problem("bad_value", f"{option}: {got} is not {wanted}", f"write {wanted}"))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def requests_of(settings: Settings, specs: list[ModelSpec]) -> tuple[list[PlanRequest], ByteRange | None]:
    """One request per model, and the claimed size. Raises UsageError with all that is wrong."""
    read = _Reader(settings)
    engine = read.word("engine", ENGINES)
    total, source, note, name = _gpu(read)
    options = _engine_options(read)
    lengths = _lengths(read)
    running = _running(read)
    share = "a share above 0 and up to 1, such as 0.9"
    common = {
        "gpu": name,
        "total": total,
        "total_source": source,
        "total_note": note,
        "engine": engine,
        "engine_version": settings.engine_version,
        "weights": read.size("weights"),
        "overhead": read.size("overhead"),
        "margin": read.size("margin", exact=True),
        "available_kv": read.size("available_kv"),
        "utilisation": read.number("gpu_memory_utilization", 0, 1, share),
        "non_torch": read.size("non_torch"),
        "activation_peak": read.size("activation_peak"),
        "graphs": read.size("graphs"),
        "free_memory": read.size("free_memory"),
        "kv_fraction": read.number("kv_fraction", 0, 1, share),
        "mem_fraction_static": read.number("mem_fraction_static", 0, 1, share),
        "options": options,
        "lengths": lengths,
        "shared_prefix_tokens": read.count("shared_prefix", 0) or 0,
        "price_per_hour": read.number("price_per_hour", 0, 1e9, "a price above 0"),
        "output_tokens_per_s": read.number("output_tokens_per_s", 0, 1e12, "a speed above 0"),
        "preemption_probability": read.number("preemption_probability", 0, 0.999, "a chance such as 0.01")
        or DEFAULT_PREEMPTION,
        "running": running,
    }
    claim = read.size("claim")
    read.problems += _prefix_problems(lengths, read.count("shared_prefix", 0) or 0)
    if read.problems:
        raise UsageError(*read.problems)
    return [PlanRequest(spec=spec, **common) for spec in specs], claim  # type: ignore[arg-type]


def _gpu(read: _Reader) -> tuple[ByteRange | None, str, str | None, str | None]:
    """Memory of the card, where it comes from, what to say of it, its name."""
    given = read.settings.gpu
    if given is None:
        return None, "user", None, None
    if isinstance(given, int):
        return _some(read, read.size("gpu")), "user", None, f"{given} B"
    found = None if has_unit(given) else _device(read, given)
    if found is not None:
        memory = f"{found.name}: {size(found.memory_bytes)} ({found.memory_source})"
        return ByteRange.of(found.memory_bytes), "table", memory, found.name
    if not is_size(given):
        return None, "table", None, given
    total = _some(read, read.size("gpu"))
    note = None
    if total is not None and is_decimal_unit(given):
        note = f"{given} is taken as powers of ten: {total.nominal:,} bytes, {size(total.nominal)}"
    return total, "user", note, given


def _device(read: _Reader, name: str) -> Device | None:
    """The GPU of that name; null for a number that is none (a size without its unit), which is an error."""
    from kvprobe.model.devices import device

    if name.strip()[:1] in ("-", "+"):
        read.attempt(lambda: parse_size(name, "--gpu"))
        return None
    if not is_size(name):
        return read.attempt(lambda: device(name))
    try:
        return device(f"RTX {name}" if name.strip().isdigit() else name)
    except UsageError:
        return None


def _some(read: _Reader, total: ByteRange | None) -> ByteRange | None:
    if total is not None and total.hi <= 0:
        read.problems.append(
            Problem("bad_size", "--gpu: a card without memory", "write a size such as 80GiB")
        )
        return None
    return total


def _engine_options(read: _Reader) -> EngineOptions:
    s = read.settings
    if s.kv_dtype is not None and (s.kv_dtype_k is not None or s.kv_dtype_v is not None):
        fix = "give --kv-dtype for both, or --kv-dtype-k and --kv-dtype-v"
        read.problems.append(Problem("conflict", "--kv-dtype and --kv-dtype-k/-v exclude each other", fix))
    swap = read.size("swap_space", exact=True)
    return EngineOptions(
        block_size=read.count("block_size", 1, 2**20),
        max_model_len=read.count("max_model_len"),
        max_num_batched_tokens=read.count("max_num_batched_tokens"),
        max_num_seqs=read.count("max_num_seqs"),
        prefix_caching=_switch(read),
        mamba_cache_mode=read.word("mamba_cache_mode", ("none", "align", "all")),
        speculative_tokens=read.count("speculative_tokens", 0, 1024) or 0,
        draft_layers=read.count("draft_layers", 0, 1024) or 0,
        tp=read.count("tp", 1, MAX_RANKS) or 1,
        pp=read.count("pp", 1, MAX_RANKS) or 1,
        kv_dtype_k=s.kv_dtype_k or s.kv_dtype or "auto",
        kv_dtype_v=s.kv_dtype_v or s.kv_dtype or "auto",
        swa_full_tokens_ratio=read.number("swa_full_tokens_ratio", 0, 1, "a ratio above 0 and up to 1"),
        mamba_full_memory_ratio=read.number("mamba_full_memory_ratio", 0, 1e3, "a ratio above 0"),
        max_running_requests=read.count("max_running_requests"),
        ctx=read.count("ctx"),
        parallel=read.count("parallel", 1, 2**20),
        ubatch=read.count("ubatch"),
        kv_unified=s.kv_unified,
        swa_full=s.swa_full,
        swap_space_bytes=None if swap is None else swap.nominal,
        tokens=read.count("tokens"),
    )


def _switch(read: _Reader) -> bool | None:
    value = read.settings.prefix_caching
    if value is None or isinstance(value, bool):
        return value
    found = read.word("prefix_caching", ("on", "off"))
    return None if found is None else found == "on"


def _prefix_problems(lengths: Lengths | None, prefix_tokens: int) -> list[Problem]:
    """A prefix that most requests are too short to have is a slip: lengths were given without it."""
    if lengths is None or not prefix_tokens or lengths.p50_tokens > prefix_tokens:
        return []
    message = (
        f"--shared-prefix is {prefix_tokens:,} tokens, but half of the requests have "
        f"{lengths.p50_tokens:,} or fewer in all"
    )
    return [Problem("contradiction", message, "give --lengths with the prefix counted in: prompt + answer")]


def _lengths(read: _Reader) -> Lengths | None:
    spec = read.settings.lengths
    return None if spec is None else read.attempt(lambda: parse_lengths(spec))


def _running(read: _Reader) -> dict[str, str]:
    from kvprobe.plan.flags.write import parse_running

    text = read.settings.running
    if text is None:
        return {}
    try:
        return parse_running(text)
    except ValueError as error:
        read.problems.append(Problem("bad_value", f"--running: {error}", "close the quotes"))
        return {}
