"""A bundled server that does not start: the error names the cause that its log proves."""

from __future__ import annotations

from pathlib import Path

from kvprobe.errors import Exit
from kvprobe.run.start_failure import ended

HEAD = "INFO 2026-03-01 10:00:00,000 reference_server.build: "
START = (
    f"{HEAD}reference_server 0.1.0: model tiny, device cpu, allocator paged, preemption recompute, "
    "max_model_len 8192, max_num_seqs 64, max_num_batched_tokens 512\n"
    f"{HEAD}model tiny: 4 layers, 8 heads, 2 KV heads x 64, weights 36800512 B (35.1 MiB) fp32, made in "
    "0.27 s; threads 1\n"
)
TOO_LARGE = (
    f"{HEAD}memory budget: total 39662774 B, free at start 39662774 B, utilisation 0.900 = 35696496 B; "
    "weights 36800512 B, workspace 0 B, activation peak 0 B; left for KV -1104016 B (-1.1 MiB)\n"
    "kvprobe serve: no memory is left for KV: total 39662774 B x utilisation 0.900 = 35696496 B, weights "
    "36800512 B, workspace 0 B, activation peak 0 B; lacking 1104016 B\n"
)
PEAK = (
    "kvprobe serve: out of device memory: asked 132358144 B, free 82732032 B, largest free region 82732032 "
    "B, total 268435456 B, held by this process 185703424 B, by others 0 B; phase profile\n"
)


def said(tmp_path: Path, log: str, code: int) -> tuple[Exit, str, str]:
    path = tmp_path / "server.log"
    path.write_text(log)
    error = ended(path, " / ".join(log.strip().splitlines()[-4:]), code)
    problem = error.problems[0]
    return error.exit_code, problem.message, problem.fix or ""


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    code, message, fix = said(tmp_path, START + TOO_LARGE, 2)
    assert code == Exit.USAGE
    assert "weights_plus_fixed_too_large" in message
    assert "larger device" in fix


def test_a_peak_while_starting_is_named(tmp_path: Path) -> None:
    assert "startup_activation_peak" in said(tmp_path, START + PEAK, 2)[1]


def test_options_that_are_refused_have_no_cause(tmp_path: Path) -> None:
    code, message, fix = said(tmp_path, "kvprobe serve: error: unrecognized arguments: --bogus\n", 2)
    assert code == Exit.USAGE
    assert "refused its options" in message
    assert "--help" in fix


def test_an_end_that_nobody_can_explain_is_the_targets(tmp_path: Path) -> None:
    code, message, _ = said(tmp_path, START, 1)
    assert code == Exit.TARGET
    assert "ended with code 1" in message
