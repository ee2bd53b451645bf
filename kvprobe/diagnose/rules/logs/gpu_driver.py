"""Faults that the GPU's driver reports. They are never a matter of capacity."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites
from kvprobe.evidence.events import Event

# Meanings after NVIDIA's catalogue of Xid messages.
_HARDWARE: Final[dict[int, str]] = {
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "memory row remapping or page retirement",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained memory error (ECC)",
    95: "uncontained memory error (ECC)",
    110: "security fault",
    119: "the GSP does not answer",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
    144: "NVLink: SAW error",
    145: "NVLink: RLW error",
    146: "NVLink: TLW error",
    147: "NVLink: TREX error",
    148: "NVLink: NVLPW error",
    149: "NVLink: NETIR error",
    150: "NVLink: MSE error",
}
_SOFTWARE: Final[dict[int, str]] = {
    8: "GPU stopped processing",
    13: "graphics engine exception (a kernel's bad access)",
    31: "MMU fault (a kernel's bad address)",
    32: "invalid or corrupted push buffer",
    43: "GPU stopped processing (reset channel)",
    45: "pre-emptive clean-up after another error",
    68: "video processor exception",
    69: "graphics engine class error",
    109: "context switch timeout",
    137: "NVLink privilege error (a peer's bad access)",
}
_LOST: Final[dict[str, str]] = {
    "device_off_bus": "The GPU is off the bus",
    "gsp_timeout": "The card's own firmware processor (GSP) does not answer any more",
    "adapter_failed": "The driver cannot initialise the card",
}
_PROOF: Final = frozenset({48, 63, 64, 79, 94, 95})
"""Xids that only hardware makes; a fault of software or firmware can end in any other."""
_FOLLOWS = frozenset({45, 154})
_NO_CAPACITY: Final = {
    "capacity_exhausted": "the driver reports a fault, not a lack of memory",
    "not_memory": "the driver names the fault",
}
_HW_CHECK = [
    "`dmesg -T | grep -iE 'xid|nvrm'` from the first event on, and `nvidia-smi -q -d ECC,ROW_REMAPPER`",
    "power, cooling and seating of the card; whether the same card (PCI address) fails again",
]
_SW_CHECK = [
    "whether it comes back on the same card with other software (then hardware), or on other cards with the "
    "same",
    "`compute-sanitizer` or CUDA_LAUNCH_BLOCKING=1 for the kernel that faults; versions of both",
]


def xid(view: LogView) -> list[LogCandidate]:
    """The Xid that came first of those that are no consequence; hardware before software."""
    events = [e for e in view.all("xid") if isinstance(e.get("code"), int)]
    hard = [e for e in events if e.get("code") in _HARDWARE or e.get("caused_by") in _HARDWARE]
    soft = [e for e in events if e.get("code") in _SOFTWARE and e not in hard]
    first = next((e for e in soft if e.get("code") not in _FOLLOWS), None)
    if hard and first is not None and first.line < hard[0].line and not any(_proves(e) for e in hard):
        return _software_first(first, hard[0], events)
    only_reset = [e for e in events if e.get("code") == 154]
    if hard:
        named = next((e for e in hard if e.get("code") in _HARDWARE), hard[0])
        return [
            _hardware(named, _HARDWARE.get(named.get("code")) or "an earlier fault", events, _sure(named))
        ]
    if soft:
        return [_software(next((e for e in soft if e.get("code") not in _FOLLOWS), soft[0]), events)]
    if only_reset:
        told = "a recovery action (reset or reboot) is required"
        return [_hardware(only_reset[0], told, events, "suspected")]  # after what fault is not told
    return []


def _software_first(first: Event, hard: Event, events: list[Event]) -> list[LogCandidate]:
    """A kernel's fault, and then the card's controller stops: the first in time is the root."""
    root = _software(first, events)
    later = _hardware(hard, _HARDWARE.get(hard.get("code")) or "a fault", events, "suspected")
    later.root = False
    return [root, later]


def _proves(event: Event) -> bool:
    return event.get("code") in _PROOF or event.get("caused_by") in _PROOF


def _sure(event: Event) -> Confidence:
    if not _proves(event):
        return "likely"
    return "certain" if event.get("device") or event.provenance in {"kernel", "logger"} else "likely"


def _hardware(event: Event, meaning: str, events: list[Event], sure: Confidence) -> LogCandidate:
    where = f" on {event.get('device')}" if event.get("device") else ""
    code = f"Xid {event.get('code')}{where}: " if event.get("code") else ""
    return candidate(
        "gpu_hw_fault",
        sure,
        f"{code}{meaning}, a fault of the card, its link or its firmware; capacity settings cannot help.",
        [cite(event), *cites((e for e in events if e is not event), 3)],
        fatal=True,
        at=event,
        check_first=_HW_CHECK,
        remedy=[
            "drain the node and reset or power-cycle the card",
            "replace it when the fault returns (RMA)",
        ],
        would_change_my_mind=["the fault follows the software, not the card"],
        excludes=_NO_CAPACITY,
    )


def _software(event: Event, events: list[Event]) -> LogCandidate:
    code = event.get("code")
    sure: Confidence = "suspected" if code in _FOLLOWS else _sure(event)
    cards = {e.get("device") for e in events if e.get("device")}
    spread = f" on {len(cards)} cards" if len(cards) > 1 else ""
    return candidate(
        "gpu_software_fault",
        sure,
        f"Xid {code}{spread}: {_SOFTWARE[code]}: a kernel or the driver did something illegal; memory was "
        f"not exhausted.",
        [cite(event), *cites((e for e in events if e is not event), 3)],
        fatal=True,
        at=event,
        check_first=_SW_CHECK,
        remedy=["upgrade or change the attention/MoE backend that faults", "upgrade the driver"],
        would_change_my_mind=["the same card fails with any software: then the hardware"],
        excludes=_NO_CAPACITY,
    )


def lost_device(view: LogView) -> list[LogCandidate]:
    """The card does not answer any more, told without an Xid."""
    if view.all("xid"):
        return []
    for e in view.all(*_LOST)[:1]:
        return [_hardware(e, _LOST[e.name], [], "certain" if e.name == "device_off_bus" else "likely")]
    return []


def other_faults(view: LogView) -> list[LogCandidate]:
    """AMD faults and resets, a lost Vulkan device, a driver that does not match."""
    found: list[LogCandidate] = []
    for e in view.all("amd_fault", "device_lost")[:1]:
        found.append(
            candidate(
                "gpu_software_fault",
                "likely" if e.name == "amd_fault" else "suspected",
                "The driver reset the GPU after a fault or a hang of a kernel; memory was not exhausted.",
                [cite(e)],
                fatal=True,
                at=e,
                check_first=_SW_CHECK,
                remedy=["another version of the driver or of the backend", "less work in one submission"],
                would_change_my_mind=["an allocation failure just before it"],
                excludes=_NO_CAPACITY,
            )
        )
    found += [_call_failed(view, e) for e in view.all("metal_fault", "ggml_cuda_error")[:1]]
    for e in view.all("driver_mismatch")[:1]:
        found.append(
            candidate(
                "not_memory",
                "likely",
                "The user-space library and the kernel driver are of different versions; the GPU cannot be "
                "used.",
                [cite(e)],
                fatal=True,
                at=e,
                check_first=["`cat /proc/driver/nvidia/version` against `nvidia-smi`"],
                remedy=["reboot, or reload the kernel module of the new version"],
                would_change_my_mind=["an allocation failure in the same log"],
            )
        )
    return found


def _call_failed(view: LogView, event: Event) -> LogCandidate:
    """Work that Metal gave up, or a CUDA call of ggml that failed for another reason than memory."""
    what = event.get("kind") or event.get("message")
    where = f" in `{event.get('function')}`" if event.get("function") else ""
    return candidate(
        "gpu_software_fault",
        "suspected",
        f"The GPU's driver gave the work up{where} ({what}); it does not report a lack of memory.",
        [cite(event)],
        fatal=not view.all("alloc_failed", "ggml_cuda_oom", "cublas_failed", "metal_oom"),
        root=False,
        at=event,
        check_first=["the first error of the log, and the same work with a smaller micro-batch"],
        remedy=[
            "another version of the back end",
            "less work in one submission (-ub, a smaller prefill step)",
        ],
        would_change_my_mind=["an allocation failure just before it"],
    )


def collective_timeout(view: LogView) -> list[LogCandidate]:
    """A collective that timed out: hardware when NVML is gone too, otherwise no memory matter."""
    event = view.first("collective_timeout")
    if event is None or view.all("torch_oom", "cuda_oom", "xid", "device_off_bus", "nccl_no_memory"):
        return []
    gone = view.first("nvml_unreachable")
    if gone is not None:
        # A container that lost its device files cannot reach the driver either.
        told = "A collective timed out and the driver does not answer"
        return [_hardware(event, told, [gone], "suspected")]
    return [
        candidate(
            "not_memory",
            "suspected",
            f"A collective ({event.get('operation')}) timed out and no rank reports a lack of memory: a "
            f"rank hangs or is gone, or a link is down.",
            [cite(event)],
            fatal=True,
            at=event,
            check_first=["which rank came last, and its log", "`dmesg` for Xid, `nvidia-smi` for a hang"],
            remedy=["find the rank that stopped first; capacity settings cannot help"],
            would_change_my_mind=["an out-of-memory in the log of another rank"],
        )
    ]


RULES: tuple[LogRule, ...] = (xid, lost_device, other_faults, collective_timeout)
