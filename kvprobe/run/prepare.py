"""Before the first request: the target answers, its tokenizer is known, the directory exists."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.environment import collect_environment
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.rundir import RunDir
from kvprobe.load.calibration import calibrate
from kvprobe.load.job import Calibration
from kvprobe.load.prompts import PromptSource
from kvprobe.load.workload import Workload
from kvprobe.load.workload_prompts import MultiTurnPrompt
from kvprobe.run import guards, logs_beside, target_guard
from kvprobe.run import target as targets
from kvprobe.run.crews import check_scale
from kvprobe.run.embedded import EmbeddedServer, require_server_extra, split_args
from kvprobe.run.model_facts import model_facts
from kvprobe.run.options import Given, Prepared, RunOptions
from kvprobe.run.progress import Progress

_LOOKED_AT = 2000
"""Planned requests whose length is checked against the model's limit before the load."""


def prepare(
    options: RunOptions,
    workload: Workload,
    progress: Progress,
    stack: ExitStack,
    hurried: Callable[[], bool],
    given: Given | None = None,
) -> Prepared:
    """Raises `KvprobeError`; what was started is undone by `stack`, and no run directory is left.

    `hurried` says whether the user has asked for the second time to stop.
    """
    guards.check_caps(workload)
    check_scale(options, workload)
    log_marks = logs_beside.mark(options.logs)
    key = targets.api_key(options.api_key_env)
    base_url, metrics_url = _addresses(options)
    server = given.server if given is not None else None
    own_server = options.target is None and server is None
    if options.target is None:
        server = server or _start_server(options, workload, progress, stack, hurried)
        base_url = server.base_url or ""
    client = stack.enter_context(targets.control_client(key, insecure=options.insecure))
    target = targets.preflight(client, base_url, options.model)
    progress.say(f"target {base_url}, model {target.model}")
    pieces = PromptSource.vocabulary_of(workload)
    history = isinstance(workload.prompt, MultiTurnPrompt)
    calibration = calibrate(base_url, target.model, workload.endpoint, key, client, pieces, history=history)
    _check_lengths(workload, calibration, target)
    planned = _check_tokens(workload, calibration)
    run_dir = RunDir.create(options.out, workload.name, workload.content_hash())
    prepared = Prepared(
        options=options,
        workload=workload,
        target=target,
        metrics_url=metrics_url or f"{base_url}/metrics",
        calibration=calibration,
        salt=run_dir.path.name if workload.salt == "run" else "",
        run_dir=run_dir,
        server=server,
        api_key=key,
        budgets=guards.budgets_of(workload, planned),
        log_marks=log_marks,
    )
    proxies = target_guard.proxies_set()
    if (said := target_guard.proxy_statement(proxies, prepared.metrics_url)) is not None:
        progress.say(said)
    _begin(prepared, given, own_server=own_server)
    return prepared


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


def _begin(prepared: Prepared, given: Given | None, *, own_server: bool) -> None:
    """The first files of the run directory; it goes away again when they cannot be written."""
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


def _check_lengths(workload: Workload, calibration: Calibration, target: targets.Target) -> None:
    """A prompt that the server must refuse is a mistake of the configuration, not a measurement."""
    limit = target.max_model_len_tokens
    if limit is None:
        return
    source = PromptSource(workload, calibration, "")
    _check_trace(source, limit)
    planned = [source.request(index) for index in range(min(source.total or _LOOKED_AT, _LOOKED_AT))]
    longest = max(planned, key=lambda r: r.asked_prompt_tokens + r.asked_completion_tokens)
    needed = longest.asked_prompt_tokens + longest.asked_completion_tokens
    if needed > limit:
        raise UsageError(
            Problem(
                "too_long",
                f"a request of this workload needs {needed} tokens ({longest.asked_prompt_tokens} in, "
                f"{longest.asked_completion_tokens} out) and the model's limit is {limit}",
                "shorten the prompt or output in the workload, or raise the server's max model length",
            )
        )


def _check_trace(source: PromptSource, limit: int) -> None:
    """All rows of a trace, not only the first ones."""
    longest = source.longest_row()
    if longest is not None and sum(longest[:2]) > limit:
        message = (
            f"the request in line {longest[2]} of the trace needs {sum(longest[:2])} tokens "
            f"({longest[0]} in, {longest[1]} out) and the model's limit is {limit}"
        )
        fix = f"leave longer ones out with `prompt.max_request_tokens: {limit}`, or scale the trace"
        raise UsageError(Problem("too_long", message, fix))


def _check_tokens(workload: Workload, calibration: Calibration) -> guards.Planned:
    """Sizes of the plan, once they are within the cap on tokens and the budget."""
    source = PromptSource(workload, calibration, "")
    looked = min(source.total or guards.MEAN_OF, guards.MEAN_OF)
    planned = guards.planned_sizes(workload, source.total, [source.request(i) for i in range(looked)])
    guards.check_tokens(workload, planned)
    return planned


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
