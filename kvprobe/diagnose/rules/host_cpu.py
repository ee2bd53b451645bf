"""The engine's host process is pegged at one core while the device idles: no question of GPU size."""

from __future__ import annotations

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.latency import NS
from kvprobe.summary.units import figures, percent

CPU, GPU = "server.cpu_s_total", "gpu.utilization_ratio"
PEGGED_CORES = 0.9
"""Of one core, on the mean: a Python process that schedules, tokenises and answers has no more than one."""
IDLE_DEVICE = 0.6
MIN_READINGS = 5
BUSY_READINGS = 0.8
MIN_SPAN_S = 3.0


def host_cpu_bound(view: View) -> Outcome:
    """Needs: the server's process (known by its pid), a GPU that is looked at, and requests that run all the
    while. Refuted by a busy device. Without a GPU the processor is the device."""
    gpu, running = view.load_series(GPU), view.load_series(activity.RUNNING)
    cpu = view.load_series(CPU)
    if min(len(gpu), len(running), len(cpu)) < MIN_READINGS:
        return Outcome()
    span_s = (cpu[-1][0] - cpu[0][0]) * NS
    busy = sum(1 for _, v in running if v > 0) / len(running)
    device = sum(v for _, v in gpu) / len(gpu)
    if span_s < MIN_SPAN_S or busy < BUSY_READINGS or device >= IDLE_DEVICE:
        return Outcome()
    cores = (cpu[-1][1] - cpu[0][1]) / span_s
    if cores < PEGGED_CORES:
        return Outcome()
    found = finding(
        "host_cpu_bound",
        "suspected",
        f"The server's process used {figures(cores)} cores while the GPU was busy {percent(device)} of the "
        f"time and requests ran in {percent(busy)} of the readings: the host, not the device, sets the pace.",
        [
            evidence(CPU, f"{figures(cores)} cores over {figures(span_s)} s", cores=(cores, "cores")),
            evidence(GPU, f"{percent(device)} on the mean", gpu_utilisation=(device, "ratio")),
        ],
        check_first=[
            "which thread is at 100 % (`top -H -p PID`): the API process, the scheduler, a tokenizer"
        ],
        remedy=[
            "less in that process (more API processes, a tokenizer pool), CUDA graphs, larger batches",
            "a faster core; a larger GPU would not help",
        ],
        would_change_my_mind=["a GPU that is busy in kernels too short for the sampled utilisation to show"],
    )
    return Outcome(candidates=[Candidate(finding=found, timing_free=True)])
