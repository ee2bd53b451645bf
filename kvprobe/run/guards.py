"""What a run may ask of a target, looked at before the first request.

Caps (`limits`) hold for every target: a typing error in a rate or a length should cost a message, not
a server. A budget is what the user can spend. Both are raised on purpose, by their key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvprobe.errors import Problem, UsageError
from kvprobe.gates.abort import AbortWatch, TokenBudget
from kvprobe.gates.judge import merged, needs_slo
from kvprobe.gates.rules import AbortRule, parse_rule
from kvprobe.load.job import PlannedRequest
from kvprobe.load.workload import Workload
from kvprobe.load.workload_gates import AbortWhen
from kvprobe.run.options import Prepared, RunOptions

MEAN_OF = 200
"""Planned requests from which the mean size is taken."""


def with_gates(workload: Workload, options: RunOptions) -> Workload:
    """The workload with the thresholds and abort rules of the command line. Raises `UsageError` with
    every one of them that is wrong."""
    problems: list[Problem] = []
    thresholds, aborts = list(workload.thresholds), list(workload.abort)
    for text in options.thresholds:
        try:
            thresholds = merged(thresholds, [text])
        except UsageError as error:
            problems.extend(error.problems)
    for text in options.aborts:
        try:
            aborts = _replaced(aborts, parse_rule(text))
        except UsageError as error:
            problems.extend(error.problems)
    if not problems and workload.slo is None and (metric := needs_slo(thresholds)) is not None:
        message = f"`{metric}` counts the requests that keep the limits of `slo`, and there are none"
        fix = "add `slo: {ttft: 2s, tpot: 200ms}` to the workload, or --set slo.ttft=2s"
        problems.append(Problem("missing_key", message, fix, "--threshold"))
    if problems:
        raise UsageError(*problems)
    return workload.model_copy(update={"thresholds": tuple(thresholds), "abort": tuple(aborts)})


def _replaced(aborts: list[AbortWhen], rule: AbortRule) -> list[AbortWhen]:
    """A rule of the command line takes the place of one of the file on the same value and side."""
    kept = [a for a in aborts if not rule.when.same_question(parse_rule(a.when).when)]
    made = AbortWhen.model_validate({"when": rule.when.text, "grace": f"{rule.grace_s!r}s"})
    return [*kept, made]


@dataclass(frozen=True, slots=True)
class Planned:
    """The sizes of a run, as planned; null where they cannot be known beforehand."""

    requests: float | None
    mean_input: float
    mean_output: float

    @property
    def tokens(self) -> float | None:
        return None if self.requests is None else self.requests * (self.mean_input + self.mean_output)


def check_caps(workload: Workload) -> None:
    """Rate, concurrency and time. Raises `UsageError` with each cap that is exceeded."""
    problems = list(_over_caps(workload))
    if problems:
        raise UsageError(*problems)


def _over_caps(workload: Workload) -> Iterator[Problem]:
    limits = workload.limits
    rate = peak_rate_per_s(workload)
    if rate is not None and rate > limits.rate:
        asked = f"{rate:.15g}"  # all its digits: 200.0001 is more than 200
        yield _cap(f"{asked} requests/s are asked for", f"{limits.rate:.15g}/s", f"rate={asked}")
    users = concurrency(workload)
    if users is not None and users > limits.concurrency:
        what = f"up to {users:,} requests at once are asked for"
        yield _cap(what, f"{limits.concurrency:,}", f"concurrency={users}")
    seconds = (workload.duration_s or 0.0) + (workload.warmup.duration_s or 0.0)
    if seconds > limits.duration_s:
        asked = f"{seconds:.15g}"
        yield _cap(f"a load of {asked} s is asked for", f"{limits.duration_s:.15g} s", f"duration={asked}s")


def _cap(what: str, limit: str, setting: str) -> Problem:
    return Problem(
        "over_limit",
        f"{what}, and the cap is {limit}",
        f"if the target is yours and can take it: --set limits.{setting} (or `limits` in the workload)",
    )


def check_tokens(workload: Workload, planned: Planned) -> None:
    """Tokens and money, where the plan says how many. Raises `UsageError`."""
    tokens, limits, budget = planned.tokens, workload.limits, workload.budget
    if tokens is None:
        return
    problems = []
    if tokens > limits.tokens:
        what = f"this plan needs about {tokens:,.0f} tokens"
        problems.append(_cap(what, f"{limits.tokens:,}", f"tokens={int(tokens * 1.1)}"))
    for each in budgets_of(workload, planned):
        needed = (planned.requests or 0.0) * (
            each.per_input * planned.mean_input + each.per_output * planned.mean_output
        )
        if budget is not None and each.name != "limits.tokens" and needed > each.limit:
            message = f"this plan needs about {needed:,.6g}, and `{each.name}` is {each.limit:,.6g}"
            problems.append(Problem("over_budget", message, f"ask for less, or raise `{each.name}`"))
    if problems:
        raise UsageError(*problems)


def planned_sizes(workload: Workload, total: int | None, requests: Sequence[PlannedRequest]) -> Planned:
    """Sizes from a look at the first planned requests. `total` is the plan's number of requests."""
    looked = requests[:MEAN_OF]
    n = max(len(looked), 1)
    if total is None and workload.duration_s is not None and (rate := peak_rate_per_s(workload)) is not None:
        total = int(rate * (workload.duration_s + (workload.warmup.duration_s or 0.0)))
    return Planned(
        requests=total,
        mean_input=sum(r.asked_prompt_tokens for r in looked) / n,
        mean_output=sum(r.asked_completion_tokens for r in looked) / n,
    )


def budgets_of(workload: Workload, planned: Planned) -> list[TokenBudget]:
    """What is kept while the load goes: the budget, and the cap on tokens where no plan bounds them."""
    sizes = {"asked_input": planned.mean_input, "asked_output": planned.mean_output}
    found = []
    if planned.tokens is None:
        found.append(TokenBudget("limits.tokens", float(workload.limits.tokens), **sizes))
    budget = workload.budget
    if budget is not None and budget.tokens is not None:
        found.append(TokenBudget("budget.tokens", float(budget.tokens), **sizes))
    if budget is not None and budget.money is not None:
        per_input = (budget.price_per_million_input or 0.0) / 1e6
        per_output = (budget.price_per_million_output or 0.0) / 1e6
        found.append(TokenBudget("budget.money", budget.money, per_input, per_output, **sizes))
    return found


def watch_of(prepared: Prepared) -> AbortWatch:
    """The watch over a load that is about to start."""
    workload = prepared.workload
    rules = [AbortRule(parse_rule(a.when, "workload").when, a.grace_s) for a in workload.abort]
    return AbortWatch(prepared.run_dir.spool_dir, rules, prepared.budgets)


def idle_rules(workload: Workload) -> str | None:
    """What to say of abort rules whose grace time is as long as the whole load; null when there are none."""
    if workload.duration_s is None:
        return None
    load_s = workload.duration_s + (workload.warmup.duration_s or 0.0)
    idle = [a for a in workload.abort if a.grace_s >= load_s]
    if not idle:
        return None
    told = ", ".join(f"`{a.when}` ({a.grace_s:g} s)" for a in idle)
    return f"can hardly stop a load of {load_s:g} s, their grace time is as long: abort rules {told}"


def peak_rate_per_s(workload: Workload) -> float | None:
    """The highest rate that the schedule asks for; null for a closed loop and for a trace."""
    opened = workload.arrival.open
    return opened.peak_rate if opened is not None else None


def concurrency(workload: Workload) -> int | None:
    """Users of a closed loop, or the most requests in flight that an open one allows."""
    arrival = workload.arrival
    if arrival.closed is not None:
        return arrival.closed.users
    return arrival.open.max_in_flight if arrival.open is not None else None
