"""Before the first request: the target answers, its tokenizer is known, the directory exists."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from kvprobe.evidence.environment import collect_environment
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.rundir import RunDir
from kvprobe.load.calibration import calibrate
from kvprobe.load.job import Calibration
from kvprobe.load.prompts import PromptSource
from kvprobe.load.workload import Workload
from kvprobe.load.workload_prompts import MultiTurnPrompt
from kvprobe.run import guards, logs_beside, plan_checks, target_guard
from kvprobe.run import target as targets
from kvprobe.run.crews import check_scale
from kvprobe.run.embedded import EmbeddedServer, require_server_extra, split_args
from kvprobe.run.model_facts import model_facts
from kvprobe.run.options import Given, Prepared, RunOptions
from kvprobe.run.progress import Progress


def prepare(
    options: RunOptions,
    workload: Workload,
    progress: Progress,
    stack: ExitStack,
    hurried: Callable[[], bool],
    given: Given | None = None,
) -> Prepared:
    """Raises `KvprobeError`; what was started is undone by `stack`, and no run directory is left.
    `hurried` says whether the user has asked for the second time to stop."""
    guards.check_caps(workload)
    check_scale(options, workload)
    log_marks = logs_beside.mark(options.logs)
    if given is not None and given.server is not None:
        # The suite's server writes one log for all parts: this run keeps what comes during its own time.
        log_marks += logs_beside.mark([given.server.log_path])
    key = targets.api_key(options.api_key_env)
    base_url, metrics_url = _addresses(options)
    server = given.server if given is not None else None
    own_server = options.target is None and server is None
    if options.target is None:
        server = server or _start_server(options, workload, progress, stack, hurried)
        base_url = server.base_url or ""
    known = _known_of(options, workload, base_url, key, progress, stack)
    run_dir = RunDir.create(options.out, workload.name, workload.content_hash())
    prepared = Prepared(
        options=options,
        workload=workload,
        target=known.target,
        metrics_url=metrics_url or f"{base_url}/metrics",
        calibration=known.calibration,
        salt=run_dir.path.name if workload.salt == "run" else "",
        run_dir=run_dir,
        server=server,
        api_key=key,
        budgets=guards.budgets_of(workload, known.planned),
        log_marks=log_marks,
    )
    _begin(prepared, given, progress, own_server=own_server)
    return prepared


class _Known(NamedTuple):
    """What the target has told, and the plan's sizes by it."""

    target: targets.Target
    calibration: Calibration
    planned: guards.Planned


def _known_of(
    options: RunOptions,
    workload: Workload,
    base_url: str,
    key: str | None,
    progress: Progress,
    stack: ExitStack,
) -> _Known:
    """The target answers, and the plan is one that it can serve. Raises `KvprobeError`."""
    client = stack.enter_context(targets.control_client(key, insecure=options.insecure))
    target = targets.preflight(client, base_url, options.model)
    progress.say(f"target {base_url}, model {target.model}")
    pieces = PromptSource.vocabulary_of(workload)
    history = isinstance(workload.prompt, MultiTurnPrompt)
    calibration = calibrate(base_url, target.model, workload.endpoint, key, client, pieces, history=history)
    plan_checks.check_lengths(workload, calibration, target)
    planned = plan_checks.check_tokens(workload, calibration)
    if (said := plan_checks.time_warning(workload, PromptSource(workload, calibration, ""))) is not None:
        progress.say(said)
    return _Known(target, calibration, planned)


def _say_proxies(prepared: Prepared, progress: Progress) -> None:
    said = target_guard.proxy_statement(target_guard.proxies_set(), prepared.metrics_url)
    if said is not None:
        progress.say(said)


def _addresses(options: RunOptions) -> tuple[str, str | None]:
    """The target's address (empty: the bundled server) and that of its metrics, both past the guard."""
    metrics_url = targets.page_url(options.metrics_url) if options.metrics_url is not None else None
    if metrics_url is not None:
        target_guard.guard(metrics_url, own_target=options.own_target)
    if options.target is None:
        return "", metrics_url
    base_url = targets.normalise_url(options.target)
    target_guard.guard(base_url, own_target=options.own_target)
    target_guard.confirm_production(base_url, yes=options.yes)
    return base_url, metrics_url


def _begin(prepared: Prepared, given: Given | None, progress: Progress, *, own_server: bool) -> None:
    """The first files of the run directory; it goes away again when they cannot be written."""
    _say_proxies(prepared, progress)
    run_dir, server = prepared.run_dir, prepared.server
    try:
        if server is not None and own_server:
            server.move_log(run_dir.path / "server.log")
        _write_preamble(prepared)
        for fact in given.facts if given is not None else ():
            run_dir.add_fact(fact)
    except BaseException:
        run_dir.discard()
        raise


def _start_server(
    options: RunOptions,
    workload: Workload,
    progress: Progress,
    stack: ExitStack,
    hurried: Callable[[], bool],
) -> EmbeddedServer:
    require_server_extra()
    args = split_args(options.serve_args) if options.serve_args is not None else workload.server_args
    server = EmbeddedServer(args, options.out, hurried)
    stack.callback(server.stop)
    progress.say("starting the bundled reference server ...")
    server.start()
    return server


def _write_preamble(prepared: Prepared) -> None:
    """What is known before the load, so that a killed run still says what it was."""
    run_dir, target, options = prepared.run_dir, prepared.target, prepared.options
    run_dir.write_text("workload.yaml", prepared.workload.resolved_yaml())
    run_dir.write_json("environment.json", _environment(prepared))
    facts = [
        Fact(
            name="target",
            source="/v1/models",
            value={
                "base_url": target.base_url,
                "model": target.model,
                "models": list(target.models),
                "max_model_len_tokens": target.max_model_len_tokens,
                "bundled": prepared.server is not None,
                "insecure": options.insecure,
                "metrics_url": targets.without_query(prepared.metrics_url),
                "proxy_variables": target_guard.proxies_set(),
                "root": target.root,
            },
        ),
        Fact(name="calibration", source="/tokenize", value=_calibration_value(prepared.calibration)),
        Fact(name="salt", source="run", value=prepared.salt),
        Fact(name="workload_hash", source="workload.yaml", value=prepared.workload.content_hash()),
    ]
    trace = PromptSource(prepared.workload, prepared.calibration, prepared.salt).trace_facts()
    if trace is not None:
        facts.append(Fact(name="trace", source="prompt.trace", value=trace))
    for fact in [*facts, *model_facts(target)]:
        run_dir.add_fact(fact)


def _calibration_value(calibration: Calibration) -> dict[str, object]:
    return {
        "source": calibration.source,
        "words": len(calibration.word_tokens),
        "template_tokens": calibration.template_tokens,
        "template_prefix_tokens": calibration.template_prefix_tokens,
        "check_relative_error": calibration.check_relative_error,
    }


def _environment(prepared: Prepared) -> dict[str, object]:
    environment = collect_environment()
    environment["workload_hash"] = prepared.workload.content_hash()
    environment["server_pid"] = prepared.server.pid if prepared.server is not None else None
    environment["server_args"] = list(prepared.server.args) if prepared.server is not None else None
    return environment
