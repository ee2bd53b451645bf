"""Where a report comes from: parts of a suite, how to repeat the run, what files it left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvprobe.evidence.spool import open_regular
from kvprobe.report.charts_capacity import number
from kvprobe.report.content import Block, Facts, Inline, Num, Para, Pre, Said, Section, Table
from kvprobe.report.kept_up import words_of_run
from kvprobe.report.run_view import RunView
from kvprobe.report.words import Words
from kvprobe.summary.units import figures, seconds, whole

WORKLOAD_CHARS = 6_000
_FILES = (
    ("requests.parquet", "a row per request, with every instant"),
    ("samples.parquet", "metrics of server, host and client over time"),
    ("facts.jsonl", "what was found out before, during and after the load"),
    ("summary.json", "the numbers of this report (kvprobe.run/1)"),
    ("diagnosis.json", "causes with their evidence (kvprobe.diagnosis/1)"),
    ("workload.yaml", "the workload as it was run"),
    ("environment.json", "versions, machine, clocks"),
    ("server.log", "the bundled server's own log"),
    ("log.txt", "what kvprobe did"),
)


def reproduction(view: RunView) -> Section:
    """The command, versions, seeds and digests; the workload as it was run."""
    w, s, data = view.w, view.summary, view.data
    rows: list[tuple[str, Inline]] = [
        (w("run directory"), s.run_dir),
        (w("workload digest"), s.workload_hash or w("not known")),
        (w("engine"), " ".join(p for p in (s.engine, s.engine_version) if p) or w("not known")),
    ]
    blocks: list[Block] = [Facts(rows)]
    if data is not None:
        rows += _environment(w, data.environment)
        salt = next((f.value for f in data.facts if f.name == "salt"), None)
        if isinstance(salt, str):
            rows.append((w("salt of the prompts"), salt))
        args = data.environment.get("server_args")
        if isinstance(args, list):
            rows.append((w("options of the bundled server"), " ".join(str(a) for a in args) or w("none")))
    command = f"kvprobe run workload.yaml{_target(view)}"
    blocks += [Para(w("In the run directory:")), Pre(command)]
    text = _file(Path(s.run_dir) / "workload.yaml") if data is not None else ""
    if text:
        blocks += [Para("workload.yaml"), Pre(text)]
    return Section("reproduction", w("Reproduction"), blocks)


def _environment(w: Words, env: Mapping[str, Any]) -> list[tuple[str, Inline]]:
    found: list[tuple[str, Inline]] = []
    if isinstance(env.get("kvprobe"), str):
        found.append(("kvprobe", env["kvprobe"]))
    platform = env.get("platform")
    if isinstance(platform, Mapping):
        told = " ".join(str(platform[k]) for k in ("system", "release", "machine") if platform.get(k))
        found.append((w("machine"), f"{told}; {w('{n} CPUs usable', n=env.get('cpu_usable') or '?')}"))
    libraries = env.get("libraries")
    if isinstance(libraries, Mapping):
        found.append((w("libraries"), ", ".join(f"{k} {v}" for k, v in libraries.items() if v)))
    return found


def _target(view: RunView) -> str:
    bundled = view.data is not None and any(
        f.name == "target" and isinstance(f.value, dict) and f.value.get("bundled") for f in view.data.facts
    )
    if bundled:
        args = view.data.environment.get("server_args") if view.data is not None else None
        told = " ".join(str(a) for a in args) if isinstance(args, list) else ""
        return f" --serve-args '{told}'" if told else ""
    return f" --target {view.summary.target}" if view.summary.target else ""


def _file(path: Path) -> str:
    try:
        with open_regular(path) as file:
            text = file.read(WORKLOAD_CHARS + 1).decode("utf-8", "replace")
    except OSError:
        return ""
    return text if len(text) <= WORKLOAD_CHARS else text[:WORKLOAD_CHARS] + "\n..."


def files(view: RunView) -> Section:
    w = view.w
    rows: list[list[Inline]] = [
        [name, w(what)] for name, what in _FILES if (Path(view.summary.run_dir) / name).is_file()
    ]
    note = w(
        "They stand in {dir}; this page is rebuilt from them with `kvprobe report`.", dir=view.summary.run_dir
    )
    blocks: list[Block] = [Para(note)]
    if rows:
        blocks.append(
            Table(name="files", caption=w("Files of the run"), columns=[w("file"), w("holds")], rows=rows)
        )
    return Section("files", w("Raw data"), blocks)


def parts(w: Words, runs: list[Any], sweep: Any = None) -> Section | None:
    """The runs of a suite or sweep side by side; of a sweep, each with the verdict of its step."""
    found = [r for r in runs if isinstance(r, Mapping)]
    if not found:
        return None
    steps = [s for s in _map(sweep).get("steps") or [] if isinstance(s, Mapping)]
    verdicts = {s.get("run_dir"): str(s["verdict"]) for s in steps if s.get("verdict")}
    table = Table(
        name="parts",
        caption=w("Runs of this suite"),
        columns=[
            w("part"),
            w("requests ok"),
            w("failed"),
            w("cut at the end"),
            "TTFT p50",
            "TTFT p95",
            w("output tokens/s"),
            w("verdict") if verdicts else w("primary"),
            w("valid"),
        ],
        rows=[_part(w, r, verdicts.get(Path(str(r.get("run_dir"))).name)) for r in found],
        numeric=frozenset(range(1, 7)),
    )
    return Section("parts", w("Parts"), [table])


def _part(w: Words, run: Mapping[str, Any], verdict: str | None) -> list[Inline]:
    requests, metrics, told = (_map(run.get(k)) for k in ("requests", "metrics", "diagnosis"))
    ttft, validity = _map(metrics.get("ttft_s")), _map(told.get("validity"))
    valid = validity.get("valid")
    part = _map(run.get("part"))
    failed, cut = number(requests.get("failed")), number(requests.get("cut_at_end"))
    warnings = validity.get("warnings")
    told_of = words_of_run(
        str(told.get("primary") or "-"), warnings if isinstance(warnings, list) else [], verdict
    )
    told_round = number(part.get("round"))
    name = part.get("name") or run.get("name") or run.get("workload") or run.get("run_dir") or "?"
    return [
        f"{name} ({whole(told_round)})" if told_round and told_round > 1 else str(name),
        _count(requests.get("ok")),
        _count(failed - (cut or 0) if failed is not None else None),
        _count(cut),
        _time(w, ttft, "p50"),
        _time(w, ttft, "p95"),
        Num(figures(v), v) if (v := number(metrics.get("output_tokens_per_s"))) is not None else "-",
        "; ".join(map(w, told_of)),
        Said(w("yes"), "good") if valid is True else Said(w("NO"), "bad") if valid is False else "-",
    ]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> Inline:
    n = number(value)
    return Num(whole(n), n) if n is not None else "-"


def _time(w: Words, ttft: Mapping[str, Any], name: str) -> Inline:
    value = number(ttft.get(name))
    if value is not None:
        return Num(seconds(value), value)
    reason = _map(ttft.get("reasons")).get(name)
    return (
        Num(w("n too small"), tone="dim")
        if isinstance(reason, str) and reason.startswith("n too small")
        else "-"
    )
