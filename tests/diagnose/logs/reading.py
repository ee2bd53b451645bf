"""From the text of a log to its diagnosis, as the command does it, without files."""

from __future__ import annotations

from typing import Any

from kvprobe.diagnose.log_judge import diagnose_log
from kvprobe.diagnose.log_observations import observe
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Diagnosis, Finding, Observation
from kvprobe.evidence.events import Event
from kvprobe.observe.logs.intake import read_text


def view_of(text: str, *, prediction: dict[str, Any] | None = None) -> LogView:
    read = read_text(text)
    return LogView(
        events=list(read.events),
        engine=read.engine,
        engine_version=read.engine_version,
        prediction=prediction,
        ended=dict(read.ended),
        read={"bytes": read.bytes, "lines": read.lines},
    )


def diagnose(text: str, *, prediction: dict[str, Any] | None = None) -> Diagnosis:
    return diagnose_log(view_of(text, prediction=prediction))


def observations(text: str) -> list[Observation]:
    return observe(view_of(text))


def events(text: str, name: str) -> list[Event]:
    return [e for e in view_of(text).events if e.name == name]


def first(text: str, name: str) -> dict[str, Any]:
    """The values of the first event of that name."""
    return {k: v.value for k, v in events(text, name)[0].values.items()}


def finding(diagnosis: Diagnosis, cause: str) -> Finding:
    return next(f for f in diagnosis.findings if f.cause == cause)


def roles(diagnosis: Diagnosis) -> dict[str, str]:
    return {f.cause: f.role for f in diagnosis.findings}


def oom(
    requested: str,
    total: float,
    free: str,
    allocated: float,
    unallocated: str,
    *,
    process: float | None = None,
    others: str = "",
) -> str:
    """The message of PyTorch 2.3 and later; sizes in GiB where no unit is given."""
    own = (
        f" Including non-PyTorch memory, this process has {process:.2f} GiB memory in use." if process else ""
    )
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a "
        "total capacity of "
        f"{total:.2f} GiB of which {free} is free.{others}{own} Of the allocated memory "
        f"{allocated:.2f} GiB is "
        f"allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated "
        "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


def traceback(*frames: str, package: str = "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker") -> str:
    """Frames of these functions, outermost first, each with a line of code below."""
    lines = ["Traceback (most recent call last):"]
    for n, name in enumerate(frames):
        file, _, function = name.rpartition(":")
        lines += [
            f'  File "{file or package + "/gpu_model_runner.py"}", line {100 + n}, in {function}',
            "    step()",
        ]
    return "\n".join(lines)
