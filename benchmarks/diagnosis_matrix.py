"""Every ailment of the reference server, and healthy runs beside them: does the diagnosis name the truth?

Each case starts the server with a known illness, runs a fitting workload through the public command and
compares the primary cause with the documented one (docs/diagnose.md). The command gets no hint: the rules
read evidence, and neither the workload's name nor the server's options. A run that calls its own
measurement INVALID is repeated, as a user would; it is never counted as right.

    python benchmarks/diagnosis_matrix.py                 all cases, the table, reports/diagnosis_matrix.md
    python benchmarks/diagnosis_matrix.py small-pool      one of them
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "reports" / "diagnosis_matrix.md"
RECALL = Path(__file__).parents[1] / "tests" / "quality" / "recall"
TIMEOUT_S = 170
TRIES = 3
Way = Literal["run", "start", "quality"]
NO_CAUSE = frozenset({"client_bound", "unknown"})
"""What an invalid measurement may be called."""


@dataclass(frozen=True)
class Case:
    """One server and one workload. `truth` is the documented cause."""

    name: str
    truth: str
    workload: str = "distinct"
    sets: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    way: Way = "run"
    family: str = ""
    """One of each family runs in the CI."""
    in_ci: bool = False
    repeats: int = 1

    def arguments(self, out: Path) -> list[str]:
        """The public command's arguments for this case."""
        sets = [part for text in (*FAST, *self.sets) for part in ("--set", text)]
        serve = ["--serve-args", " ".join(self.serve)] if self.serve else []
        return ["run", self.workload, *sets, *serve, "--out", str(out), "--json"]


FAST = ("sampling.metrics_interval=200ms",)
"""Runs of a few seconds are looked at more often than long ones."""


def _ill(ailment: str, truth: str, family: str, *sets: str, **more: Any) -> Case:
    serve = ("--ailment", ailment, *more.pop("serve", ()))
    return Case(
        name=more.pop("name", ailment), truth=truth, family=family, sets=tuple(sets), serve=serve, **more
    )


def _sized(prompt: int, output: int, users: int, requests: int) -> tuple[str, ...]:
    return (
        f"prompt.tokens={prompt}",
        f"output.tokens={output}",
        f"arrival.closed.users={users}",
        f"requests={requests}",
        "warmup.requests=2",
    )


SHARED = (
    "prompt.prefix_tokens=400",
    "prompt.suffix_tokens=24",
    "prompt.families=22",
    "prompt.requests_per_family=3",
    "requests=66",
    "output.tokens=8",
    "warmup.requests=2",
)
MIXED = (
    "prompt.tokens={lognormal: {median: 400, sigma: 1.0, min: 32, max: 6000}}",
    "output.tokens={uniform: [8, 64]}",
    "arrival.closed.users=12",
    "requests=60",
)
SHORT, LONG = _sized(100, 40, 8, 100), _sized(3000, 24, 4, 12)
CANCEL = (*_sized(100, 80, 6, 60), "request.cancel={share: 0.5, after_tokens: 4}")

AILMENTS: tuple[Case, ...] = (
    _ill("workspace-hog", "fixed_workspace_missized", "budget", *_sized(700, 48, 24, 36)),
    _ill("weights-too-large", "weights_plus_fixed_too_large", "start", way="start", in_ci=True),
    _ill("startup-peak", "startup_activation_peak", "start", way="start"),
    _ill("small-pool", "logical_kv_too_large", "pool", *LONG, name="small-pool, few long", in_ci=True),
    _ill("small-pool", "kv_pool_pressure", "pool", *_sized(700, 48, 24, 48), name="small-pool, many"),
    _ill("reserve-max", "reservation_policy_waste", "allocator", *_sized(200, 48, 16, 60), in_ci=True),
    _ill("fragmented", "allocator_fragmentation", "allocator", *MIXED, workload="mixed_lengths"),
    _ill("no-reuse", "prefix_caching_off", "prefix", *SHARED, workload="shared_prefix"),
    _ill("salted", "prefix_disabled_by_request", "prefix", *SHARED, workload="shared_prefix", in_ci=True),
    _ill("coarse-blocks", "prefix_block_granularity", "prefix", *SHARED, workload="shared_prefix"),
    _ill("evict-early", "prefix_evicted", "prefix", *SHARED, workload="shared_prefix"),
    _ill("bad-kv-scales", "kv_quant_error", "quality", way="quality"),
    _ill("slow-prefill", "prefill_compute_bound", "compute", *_sized(2000, 16, 1, 10)),
    _ill("queue-limit", "queue_limit", "compute", *SHORT, in_ci=True),
    _ill("leak-on-abort", "kv_pool_leak", "cancel", *CANCEL),
    _ill("ignore-cancel", "cancellation_ignored", "cancel", *CANCEL, in_ci=True),
    _ill(
        "early-role-chunk", "stream_protocol_defect", "stream", *SHARED, workload="shared_prefix", in_ci=True
    ),
    _ill("error-in-stream", "stream_protocol_defect", "stream", *SHORT),
    _ill("host-leak", "host_memory_leak", "host", *SHORT),
    _ill("die-silently", "host_oom_kill", "host", *SHORT, in_ci=True),
    _ill("noisy-neighbour", "other_process_on_gpu", "budget", *_sized(200, 48, 12, 60), in_ci=True),
)


def _well(name: str, workload: str, *sets: str, **more: Any) -> Case:
    return Case(name=name, truth="healthy_baseline", workload=workload, family="healthy", sets=sets, **more)


HEALTHY: tuple[Case, ...] = (
    _well("shared prefix", "shared_prefix", *SHARED, in_ci=True, repeats=4),
    _well("distinct, short", "distinct", *SHORT, in_ci=True, repeats=3),
    _well("distinct, long", "distinct", *_sized(2000, 16, 2, 12), repeats=3),
    _well("mixed lengths", "mixed_lengths", *MIXED, repeats=3),
    _well("cancelled streams", "distinct", *CANCEL, in_ci=True, repeats=2),
    _well("many users", "distinct", *_sized(200, 32, 24, 96), repeats=2),
    _well("one user", "distinct", *_sized(600, 24, 1, 16), repeats=1),
    _well("open loop", "distinct", *_sized(100, 24, 4, 40)[:2], "requests=40", "warmup.requests=2",
          'arrival={open: {rate: 8}}', repeats=1),
    _well("completions", "shared_prefix", *SHARED, "endpoint=completions", repeats=1),
)  # fmt: skip


@dataclass
class Result:
    """What the command said."""

    case: Case
    primary: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    took_s: float = 0.0
    tries: int = 1
    valid: bool = True
    """False: every try called its own measurement INVALID, as on a machine that other work disturbs."""

    @property
    def right(self) -> bool:
        """The documented cause is primary; a healthy run has no finding at all."""
        if self.primary != self.case.truth:
            return False
        return self.case.truth != "healthy_baseline" or not self.findings

    @property
    def honest(self) -> bool:
        """Right; or invalid to the last try and then without another cause in front: the measurement is
        named (`client_bound`, `unknown`), and of a healthy server nothing else."""
        if self.right:
            return True
        if self.valid or self.primary not in NO_CAUSE:
            return False
        named = {f["cause"] for f in self.findings if f["role"] != "ruled_out"}
        return self.case.truth != "healthy_baseline" or named <= NO_CAUSE


def diagnose(case: Case, folder: Path, model: str | None = None) -> Result:
    """Run the case through the public command, again while the run calls itself INVALID. `model` answers
    questions of quality: a model of random weights has no answers that could get worse."""
    started = time.monotonic()
    code, document = _one(case, folder, model)
    tries = 1
    while _invalid(document) and tries < TRIES:
        code, document = _one(case, folder, model)
        tries += 1
    found = document.get("diagnosis", document)
    return Result(
        case=case,
        primary=str(found.get("primary", _no_diagnosis(code, document))),
        findings=list(found.get("findings", [])),
        observations=[o["id"] for o in found.get("observations", [])],
        took_s=time.monotonic() - started,
        tries=tries,
        valid=not _invalid(document),
    )


def _no_diagnosis(code: int, document: dict[str, Any]) -> str:
    told = "; ".join(str(e.get("message")) for e in document.get("errors", ()))
    return f"exit code {code}: {told}"


def _invalid(document: dict[str, Any]) -> bool:
    """The exit code does not tell: that of a load that was given up outranks it."""
    validity = document.get("diagnosis", document).get("validity") or {}
    return validity.get("valid") is False


def _one(case: Case, folder: Path, model: str | None) -> tuple[int, dict[str, Any]]:
    if case.way == "start":
        log = folder / "server.log"
        with log.open("wb") as stderr:
            subprocess.run(
                [sys.executable, "-m", "kvprobe", "serve", "--port", "0", *case.serve],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                timeout=TIMEOUT_S,
                check=False,
            )
        return _command(["diagnose", str(log), "--json"])
    if case.way == "quality":
        ill = ["--candidate-args", " ".join(case.serve), *(["--model", model] if model else [])]
        return _command(
            ["quality", "--kv-dtype", "fp32,int8", *ill, "--items", "20", "--context", "300", "--json"]
        )
    return _command(case.arguments(folder))


def _command(arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "kvprobe", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = {"primary": f"no document: {done.stderr.strip()[-200:]}"}
    return done.returncode, document


def table(results: Iterable[Result]) -> str:
    """The matrix as Markdown."""
    rows = [
        "| server | workload | documented cause | primary | confidence | also named | s |",
        "| --- | --- | --- | --- | --- | --- | ---: |",
    ]
    for r in results:
        named = [f for f in r.findings if f["role"] != "ruled_out"]
        sure = named[0]["confidence"] if named else ""
        also = ", ".join(f["cause"] for f in named[1:])
        mark = "" if r.right else " **wrong**"
        server = " ".join(r.case.serve) or "(healthy)"
        where = r.case.name if not r.case.serve else r.case.workload if r.case.way == "run" else r.case.way
        rows.append(
            f"| `{server}` | {where} | `{r.case.truth}` | `{r.primary}`{mark} | {sure} | {also} "
            f"| {r.took_s:.0f} |"
        )
    return "\n".join(rows) + "\n"


def report(results: Sequence[Result]) -> str:
    """The page that is kept."""
    ill = [r for r in results if r.case.truth != "healthy_baseline"]
    well = [r for r in results if r.case.truth == "healthy_baseline"]
    head = (
        "# Diagnosis matrix\n\n"
        "Each server has one known illness (or none) and is loaded through the public command; the\n"
        "diagnosis sees the evidence of the run only. Made by `make matrix`\n"
        "(`benchmarks/diagnosis_matrix.py`). `bad-kv-scales` is asked by `kvprobe quality` of the small\n"
        "model in `tests/quality/recall`: it takes a model whose answers can get worse.\n\n"
        f"{sum(r.right for r in ill)} of {len(ill)} illnesses have their documented cause as primary; "
        f"{sum(r.right for r in well)} of {len(well)} healthy runs have no finding.\n\n"
    )
    return head + table(results)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases to run; all when none is given")
    parser.add_argument("--out", type=Path, default=REPORT, help="where the table is kept (all cases only)")
    parser.add_argument(
        "--model", default=str(RECALL), help="directory of a model that answers, for the cases of quality"
    )
    args = parser.parse_args(argv)
    cases = [*AILMENTS, *(case for case in HEALTHY for _ in range(case.repeats))]
    chosen = [c for c in cases if not args.names or any(n in c.name for n in args.names)]
    results = []
    for case in chosen:
        with tempfile.TemporaryDirectory(prefix="kvprobe-matrix-") as folder:
            result = diagnose(case, Path(folder), args.model)
        results.append(result)
        verdict = "right" if result.right else "WRONG"
        print(
            f"{verdict}  {case.name}: {result.primary} ({result.took_s:.1f} s, {result.tries} tries)",
            flush=True,
        )
    print(table(results))
    if not args.names:
        args.out.write_text(report(results), encoding="utf-8")
    return 0 if all(r.right for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
