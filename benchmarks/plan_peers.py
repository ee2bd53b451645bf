"""`kvprobe plan` beside public calculators, on servers' own logs: whose numbers are right?

    python benchmarks/plan_peers.py [--cache DIR] [--out reports/plan_peers.md]

The cases are the rows of tests/plan/cases whose log prints the size of its pool. Every peer is installed, by
pinned version, into a virtual environment of its own below --cache, and is asked through its own Python
functions: bytes of a token (64K less 32K tokens), and tokens of the pool. Where a peer has no notion of a
pool, its tokens are bytes available / bytes a token. A peer that does not know a model says so itself: "no
answer" carries its reason.

Bytes a token are compared with the row's own `expected` where it has one; tokens with what the log printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peer_adapters import LOOP, PEERS, Peer

from kvprobe.errors import UsageError
from kvprobe.plan.kv_cost import kv_cost
from kvprobe.plan.pool import ByteRange, EngineOptions
from kvprobe.plan.sizes import parse_size
from tests.plan.engines import rows

INSTALL_S, ANSWER_S = 900, 300
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One log: the model's configuration, what it ran with, and what it printed."""

    id: str
    engine: str
    config: dict[str, Any]
    tp: int
    kv_bytes: float
    available: int
    printed_tokens: int
    bytes_per_token: float | None
    ours: Answer


def cases() -> list[Case]:
    """Rows with an amount of memory and a printed number of tokens."""
    found = [_capacity_case(row) for row in rows.capacity_rows().values()]
    found += [_more_case(row) for row in rows.read_rows("more.jsonl")]
    return [case for case in found if case is not None]


def _capacity_case(row: dict[str, Any]) -> Case | None:
    if not row["checks"] or row["available_kv_gib"] is None or not row["kv_cache_tokens"]:
        return None
    if row["engine"] not in ("vllm", "trtllm") or row["id"] == "trt-qwen15-7b-2268":
        return None  # its GiB are free memory, of which the engine takes 0.9
    dtype = rows.kv_dtypes(row["kv_cache_dtype"])[0]
    pool = rows.capacity_pool(row)
    expected = row["expected"].get("bytes_per_token_per_gpu")
    options = EngineOptions(tp=row["tp"], kv_dtype_k=dtype, kv_dtype_v=dtype, draft_layers=_drafts(row))
    available = parse_size(f"{row['available_kv_gib']:.2f}GiB", "available")
    return _case(
        row["id"],
        row["engine"],
        rows.config_of(row),
        options,
        available,
        row["kv_cache_tokens"],
        expected,
        pool,
    )


def _drafts(row: dict[str, Any]) -> int:
    return int(row["extra_config"].get("draft_layers", 0))


def _more_case(row: dict[str, Any]) -> Case | None:
    printed = row["printed"].get("log_line_tokens") or row["printed"].get("tokens")
    if not printed or not row.get("available") or row["engine"] not in ("vllm", "trtllm"):
        return None
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    asked: dict[str, Any] = {k: v for k, v in row.get("options", {}).items() if k in known}
    options = EngineOptions(**{k: tuple(v) if k == "layer_partition" else v for k, v in asked.items()})  # type: ignore[arg-type]
    if options.pp > 1:
        return None
    available = parse_size(row["available"], "available")
    return _case(
        row["id"], row["engine"], row["config"], options, available, printed, None, rows.pool_of(row)
    )


def _case(
    name: str,
    engine: str,
    config: dict[str, Any],
    options: EngineOptions,
    available: ByteRange,
    printed: int,
    expected: float | None,
    pool: Any,
) -> Case:
    cost = kv_cost(rows.spec_of(config), options)
    return Case(
        id=name,
        engine=engine,
        config=config,
        tp=options.tp,
        kv_bytes=float(cost.k.bytes_per_element),
        available=available.nominal,
        printed_tokens=printed,
        bytes_per_token=expected,
        ours={
            "bytes_per_token": cost.bytes_per_token,
            "tokens": pool.log_line_tokens or pool.tokens,
            "range": pool.log_line_tokens_range or pool.tokens_range,
        },
    )


def python_of(peer: Peer, cache: Path) -> Path:
    """The interpreter of the peer's own environment, made on the first call. CalledProcessError from pip."""
    home = cache / f"{peer.name}-{peer.version}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            f"{peer.name}=={peer.version}",
        ]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
        (home / "ready").touch()
    return python


def ask(peer: Peer, asked: list[Case], cache: Path) -> list[Answer]:
    """Answers in the order of the cases; the same reason for all when the peer cannot be had or crashes."""
    try:
        python = python_of(peer, cache)
        sent = [_sent(case) for case in asked]
        done = subprocess.run(
            [str(python), "-c", peer.code + LOOP],
            input=json.dumps(sent),
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it crashed")
        answers: list[Answer] = json.loads(done.stdout)
        return answers
    except (subprocess.SubprocessError, OSError, RuntimeError, ValueError) as error:
        stderr = getattr(error, "stderr", "") or str(error)
        return [
            {"reason": f"cannot be asked here: {str(stderr).strip().splitlines()[-1][:160]}"} for _ in asked
        ]


def _sent(case: Case) -> dict[str, Any]:
    """A case as the adapters take it. The intermediate size, which no cache depends on, is filled in: one
    peer refuses a configuration without it."""
    config = {"intermediate_size": 4 * case.config.get("hidden_size", 4096), **case.config}
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or case.tp
    forms = [config]
    if str(config.get("model_type")).endswith("_text"):
        # As published: the language model inside the configuration of the multimodal one.
        names = [
            n.replace("ForCausalLM", "ForConditionalGeneration") for n in config.get("architectures", [])
        ]
        outer = str(config["model_type"]).removesuffix("_text")
        forms.insert(0, {"architectures": names, "model_type": outer, "text_config": config})
    return {
        "configs": forms,
        "tp": case.tp,
        "split": min(case.tp, heads),
        "kv_bytes": int(case.kv_bytes) if case.kv_bytes.is_integer() else case.kv_bytes,
        "available": case.available,
        "family": _family(case),
    }


def _family(case: Case) -> str:
    """The family as it stands in names of models."""
    text = str(case.config.get("model_type", "")).removesuffix("_text").replace("_", "").replace("-", "")
    return {
        "qwen35moe": "qwen3.5",
        "qwen35": "qwen3.5",
        "deepseekv3": "deepseekv3",
        "minimaxm2": "minimax",
    }.get(text, text)


def error(found: float | None, true: float | None) -> str:
    if found is None or true is None:
        return "-"
    off = found / true - 1
    return "0" if found == true else f"{100 * off:+.1f} %" if abs(off) < 1 else f"x {found / true:.2f}"


def table(asked: list[Case], answers: dict[str, list[Answer]]) -> list[str]:
    names = list(answers)
    lines = ["| case | log prints | kvprobe | " + " | ".join(names) + " |", "| --- " * (3 + len(names)) + "|"]
    for number, case in enumerate(asked):
        ends = case.ours["range"] or (case.ours["tokens"],) * 2
        inside = ends[0] <= case.printed_tokens <= ends[1]
        ours = (
            f"{case.ours['tokens']:,} "
            f"({'in range' if inside else error(case.ours['tokens'], case.printed_tokens)})"
        )
        cells = [_cell(case, answers[name][number]) for name in names]
        lines.append(f"| {case.id} | {case.printed_tokens:,} | {ours} | " + " | ".join(cells) + " |")
    return lines


def _cell(case: Case, answer: Answer) -> str:
    if "reason" in answer:
        return "no answer"
    true = case.bytes_per_token or case.ours["bytes_per_token"]
    return f"{error(answer['bytes_per_token'], true)} ; {error(answer['tokens'], case.printed_tokens)}"


def summary(asked: list[Case], answers: dict[str, list[Answer]]) -> list[str]:
    lines = [
        "| tool | answered | tokens that the printed memory allows | median error | largest error |",
        "| --- " * 5 + "|",
    ]
    ours = [{"tokens": case.ours["tokens"]} for case in asked]
    for name, given in {"kvprobe": ours, **answers}.items():
        off = sorted(
            abs(a["tokens"] / c.printed_tokens - 1)
            for a, c in zip(given, asked, strict=True)
            if a.get("tokens")
        )
        if not off:
            lines.append(f"| {name} | 0 of {len(asked)} | - | - | - |")
            continue
        near = sum(_allowed(c, a["tokens"]) for a, c in zip(given, asked, strict=True) if a.get("tokens"))
        middle, worst = off[len(off) // 2], off[-1]
        lines.append(
            f"| {name} | {len(off)} of {len(asked)} | {near} | {100 * middle:.2f} % | {100 * worst:,.1f} % |"
        )
    return lines


def _allowed(case: Case, tokens: int) -> bool:
    """Could this be what the log prints, given that its GiB are rounded?"""
    ends = case.ours["range"] or (case.ours["tokens"],) * 2
    if case.printed_tokens == tokens:
        return True
    return bool(ends[0] <= case.printed_tokens <= ends[1] and ends[0] <= tokens <= ends[1])


def reasons(asked: list[Case], answers: dict[str, list[Answer]]) -> list[str]:
    """Why a peer gave no answer, cases with one reason together."""
    lines = []
    for name, given in answers.items():
        by_reason: dict[str, list[str]] = {}
        for case, answer in zip(asked, given, strict=True):
            if "reason" in answer:
                by_reason.setdefault(str(answer["reason"]), []).append(case.id)
        lines += [f"- {name}: {', '.join(ids)}: {why.replace('|', '/')}" for why, ids in by_reason.items()]
    return lines


def report(asked: list[Case], answers: dict[str, list[Answer]]) -> str:
    peers = [f"- {p.name} {p.version}: {p.asked}" for p in PEERS]
    return "\n".join(
        [
            "# `kvprobe plan` beside public calculators",
            "",
            (
                "Made by `python benchmarks/plan_peers.py --out reports/plan_peers.md`. Each case "
                "is the log of a real"
            ),
            (
                "server (tests/plan/cases, with sources). A peer's cell is the error of its bytes "
                "a token, then the error of"
            ),
            (
                "its tokens against what the log printed. `in range`: the rounding of the printed "
                "GiB allows the printed"
            ),
            (
                "tokens. On hybrid models the log line of vLLM before 0.20.1 is not a count of "
                "usable tokens: no peer models"
            ),
            "it, and an error there also holds that difference.",
            "",
            "These rows are also kvprobe's own tests: it was made to meet them; the peers never saw them,",
            "and they are no sample of what the peers were made for.",
            "",
            *peers,
            "",
            *summary(asked, answers),
            "",
            *table(asked, answers),
            "",
            "No answer, in the peers' own words:",
            "",
            *reasons(asked, answers),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvprobe" / "peers"
    parser.add_argument("--cache", type=Path, default=default, help=f"environments of the peers ({default})")
    parser.add_argument("--out", type=Path, help="write the report there instead of stdout")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    asked = []
    try:
        asked = cases()
    except UsageError as error_:
        sys.exit(str(error_))
    answers = {}
    for peer in PEERS:
        sys.stderr.write(f"{peer.name} {peer.version}\n")
        answers[peer.name] = ask(peer, asked, args.cache)
    text = report(asked, answers)
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
