"""What stands beside the logs: a metrics page, a model, a run directory; and the view made of all."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from kvprobe.errors import Problem, TargetError, UsageError

if TYPE_CHECKING:
    from kvprobe.diagnose.log_view import LogView
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.diagnose.rules.logs.base import LogCandidate
    from kvprobe.model.spec import ModelSpec
    from kvprobe.observe.dialects import Page
    from kvprobe.observe.logs.intake import LogRead

SCRAPES = 6
SCRAPE_EVERY_S = 0.5
"""A live server is asked a few times: one look cannot tell a queue from a passing one."""
_PAGE_BYTES = 8 * 2**20


def run_directory(paths: Sequence[str]) -> tuple[Path, list[str]] | None:
    """The run directory among the paths and the logs beside it; null when there is none."""
    folders = [p for p in paths if os.path.isdir(p)]
    if not folders:
        return None
    from kvprobe.evidence.rundata import REQUESTS, SPOOL

    found = [p for p in folders if any(os.path.lexists(os.path.join(p, mark)) for mark in (SPOOL, REQUESTS))]
    if not found:
        return None
    if len(folders) > 1:
        message = f"`{found[0]}` is a run directory, and only logs can stand beside it"
        raise UsageError(
            Problem("conflict", message, f"kvprobe diagnose {found[0]}; and the others apart", found[0])
        )
    return Path(found[0]), [p for p in paths if p != found[0]]


def diagnose_directory(folder: Path, logs: Sequence[str], args: argparse.Namespace) -> Diagnosis:
    """What the evidence of a run means, with the server's logs where they are given."""
    given = [
        o
        for o, v in (("--metrics", args.metrics), ("--model", args.model_config), ("--tail", args.tail))
        if v
    ]
    if given:
        message = f"{', '.join(given)} stand beside logs; a run directory holds its own evidence"
        raise UsageError(Problem("conflict", message, f"leave out {', '.join(given)}"))
    from kvprobe.diagnose.judge import diagnose_run
    from kvprobe.evidence.rundir import RunDir
    from kvprobe.summary.build import summarise

    if logs:
        from kvprobe.observe.logs import sources

        sources.check(logs)
    data = RunDir.open(folder).load()
    return diagnose_run(data, summarise(data), logs)


def suite_folder(paths: Sequence[str], args: argparse.Namespace) -> Path | None:
    """The folder of a suite or sweep among the paths; null when there is none. Raises `UsageError` for what
    cannot stand beside it."""
    found = next((p for p in paths if os.path.isfile(os.path.join(p, "suite.json"))), None)
    if found is None:
        return None
    options = (("--metrics", args.metrics), ("--model", args.model_config), ("--tail", args.tail))
    beside = [*(p for p in paths if p != found), *(o for o, v in options if v)]
    if beside:
        message = f"`{found}` is the folder of several runs, and nothing can stand beside it"
        fix = f"kvprobe diagnose {found}; or one of the run directories in it, with a log"
        raise UsageError(Problem("conflict", message, fix, found))
    return Path(found)


def diagnose_suite(folder: Path) -> Diagnosis:
    """What all runs of a suite or sweep mean together."""
    from kvprobe.diagnose.suite_judge import judge_suite, merged_diagnosis
    from kvprobe.evidence.suitedir import load_suite_dir

    return merged_diagnosis(judge_suite(load_suite_dir(folder)))


def request_log(paths: Sequence[str]) -> str | None:
    """The one request log (OpenAI JSON lines) among the paths; null when there is none."""
    from kvprobe.prefixes.sniff import is_request_log

    found = [p for p in paths if p != "-" and os.path.isfile(p) and is_request_log(p)]
    if found and len(paths) > 1:
        message = f"`{found[0]}` is a request log, and is analysed by itself"
        raise UsageError(Problem("conflict", message, f"kvprobe diagnose {found[0]}; and the others apart"))
    return found[0] if found else None


def diagnose_request_log(path: str, args: argparse.Namespace) -> Diagnosis:
    """What the prompts of a request log share, and why it was or was not reused."""
    from kvprobe.prefixes.analyse import analyse
    from kvprobe.prefixes.ceilings import Conditions
    from kvprobe.prefixes.conditions import of_page, tokenizer_of
    from kvprobe.prefixes.intake import read_request_log
    from kvprobe.prefixes.judge import diagnose_requests

    given = [f"--{name}" for name in ("block-size", "pool-tokens", "replicas") if _option(args, name)]
    block, pool, replicas = (_whole(args, name) for name in ("block-size", "pool-tokens", "replicas"))
    log = read_request_log(path)
    known = Conditions(block_tokens=block, pool_tokens=pool, replicas=replicas)
    if args.metrics is not None:
        pages = (
            _scraped(args.metrics, own_target=args.i_own_this_target, insecure=args.insecure)[-1:]
            if (_is_url(args.metrics))
            else [(0, args.metrics, _read_saved(args.metrics))]
        )
        known = of_page(known, pages[-1][2], given)
    found = analyse(
        log.sent,
        known,
        tokens_of=tokenizer_of(args.model_config),
        not_given=log.requests - len(log.sent),
    )
    return diagnose_requests(log, found)


def _option(args: argparse.Namespace, name: str) -> str | None:
    value = getattr(args, name.replace("-", "_"))
    return value if value is None else str(value)


def _whole(args: argparse.Namespace, name: str) -> int | None:
    text = _option(args, name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 2**40:
        message = f"--{name}: `{text[:40]}` is no number of tokens or replicas"
        raise UsageError(Problem("bad_value", message, "write a whole number from 1"))
    return int(text)


def _read_saved(path: str) -> Page:
    from kvprobe.observe.dialects import read_page

    return read_page(_saved(path))


def model(path: str | None) -> ModelSpec | None:
    """The model of --model; raises `UsageError` for what is none."""
    if path is None:
        return None
    from kvprobe.model.read import read_model

    return read_model(path)


def diagnose_read(read: LogRead, args: argparse.Namespace, spec: ModelSpec | None) -> Diagnosis:
    """The answer to what was read, with what stands beside it."""
    from kvprobe.diagnose.log_judge import diagnose_log
    from kvprobe.diagnose.log_observations import observe
    from kvprobe.diagnose.log_view import LogView
    from kvprobe.observe.logs.from_metrics import events_of, values_of

    looks: list[tuple[int, Page]] = []
    pages = _pages(read, args, looks)
    events = list(read.events)
    metrics: dict[str, Any] | None = None
    for name, page in pages:
        events += events_of(page, name)
        metrics = values_of(page)
    scraped = next((p for _, p in reversed(pages) if p.engine is not None), None)
    view = LogView(
        events=events,
        engine=read.engine or (scraped.engine if scraped else None),
        engine_version=read.engine_version or (scraped.version if scraped else None),
        metrics=metrics,
        ended=dict(read.ended),
        read=_read(read, [name for name, _ in pages]),
        alive=bool(looks),
    )
    if spec is not None:
        from kvprobe.cli.diagnose_model import prediction

        view.prediction = prediction(view.engine, view.engine_version, events, args.model_config, spec)
    diagnosis = diagnose_log(view, _live(looks, args, view))
    for finding in diagnosis.findings:
        for piece in finding.evidence:
            piece.line = piece.line or None  # what a metrics page says stands on no line
    return msgspec.structs.replace(diagnosis, observations=[*diagnosis.observations, *observe(view)])


def _read(read: LogRead, pages: list[str]) -> dict[str, Any]:
    return {
        "bytes": read.bytes,
        "lines": read.lines,
        "skipped": read.skipped,
        "events": len(read.events),
        "sources": read.sources,
        "metrics": sorted(set(pages)),
        "notes": read.notes,
    }


def _live(looks: list[tuple[int, Page]], args: argparse.Namespace, view: LogView) -> list[LogCandidate]:
    """What a live server showed over the looks at it."""
    if not looks:
        return []
    from kvprobe.diagnose.live import live_candidates

    return live_candidates(looks, args.metrics.partition("?")[0], view)


def _pages(read: LogRead, args: argparse.Namespace, looks: list[tuple[int, Page]]) -> list[tuple[str, Page]]:
    """Saved and scraped pages by name; the scraped ones with their instants go into `looks` too."""
    from kvprobe.observe.dialects import read_page

    pages = [(path, read_page(text)) for path, text in read.pages.items()]
    if args.metrics is not None:
        if _is_url(args.metrics):
            scraped = _scraped(args.metrics, own_target=args.i_own_this_target, insecure=args.insecure)
            looks += [(t, page) for t, _, page in scraped]
            pages += [(name, page) for _, name, page in scraped]
        else:
            pages.append((args.metrics, read_page(_saved(args.metrics))))
    for name, page in pages:
        if page.engine is None:
            read.notes.append(f"{name}: Prometheus text of no engine that is known")
    return pages


def _is_url(text: str) -> bool:
    """`http://...`, or `host:port/...` where no such file is."""
    if "://" in text:
        return True
    host, colon, rest = text.partition(":")
    return bool(host and colon) and rest[:1].isdigit() and not os.path.exists(text)


def _saved(path: str) -> str:
    """A saved page, plain or compressed."""
    from kvprobe.observe.logs import sources
    from kvprobe.observe.logs.intake import is_metrics_page
    from kvprobe.observe.logs.tally import Tally

    fix = "give a URL such as http://127.0.0.1:8000/metrics, or a saved page"
    try:
        sources.check([path])
        with sources.opened(path, Tally()) as source:
            data = source.stream.read(_PAGE_BYTES + 1)
    except UsageError as error:
        problems = [dataclasses.replace(p, code="no_metrics", fix=fix) for p in error.problems]
        raise UsageError(*problems) from error
    if len(data) > _PAGE_BYTES or not is_metrics_page(data):
        fix = "save one with: curl http://127.0.0.1:8000/metrics > metrics.txt"
        raise UsageError(Problem("no_metrics", f"`{path}` is no saved /metrics page", fix, path))
    return data.decode("utf-8", "replace")


def _scraped(text: str, *, own_target: bool, insecure: bool) -> list[tuple[int, str, Page]]:
    """A few looks at a live page. Raises `TargetError` when there is none or it must not be read."""
    from kvprobe.observe.metrics import MetricsClient
    from kvprobe.run.target import guard, page_url, without_query

    url = _page_of(page_url(text))
    _guarded(url, guard, own_target=own_target)
    client = MetricsClient(url, insecure=insecure)
    pages = []
    try:
        for i in range(SCRAPES):
            if i:
                time.sleep(SCRAPE_EVERY_S)
            scrape = client.scrape()
            if scrape.page is not None:
                pages.append((scrape.t_ns, without_query(url), scrape.page))
            elif not pages and scrape.failure is not None:
                fix = "check the URL; a page can also be saved and given as a file"
                raise TargetError(
                    Problem(scrape.failure.kind, f"{without_query(url)}: {scrape.failure.text}", fix)
                )
    finally:
        client.close()
    return pages


def _page_of(url: str) -> str:
    """`http://127.0.0.1:8000` is a server: its page is at /metrics."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path="/metrics")) if parts.path in ("", "/") else url


def _guarded(url: str, guard: Callable[..., None], *, own_target: bool) -> None:
    """Raises `TargetError` for another machine than this one without the user's word, and for the addresses
    at which clouds hand out credentials, whatever the user says."""
    try:
        guard(url, own_target=own_target)
    except TargetError as error:
        if error.problems[0].code != "guard" or "--i-own-this-target" not in (error.problems[0].fix or ""):
            raise
        message = (
            f"`{urlsplit(url).hostname}` is not this machine, and nobody said that you may read its metrics"
        )
        fix = "add --i-own-this-target if you may, or save the page and give the file"
        raise TargetError(Problem("guard", message, fix)) from error
