"""Which load workers a run has: one process, several, or those of other machines."""

from __future__ import annotations

import errno
import re
import shutil
import socket
from pathlib import Path

import msgspec

from kvprobe.checked_addresses import addresses_of_url
from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.clocks import WORKER_CLOCK
from kvprobe.evidence.spool import read_spool
from kvprobe.load.job import BreakerSpec, LoadJob, TargetSpec
from kvprobe.load.jobs_remote import (
    DEFAULT_PORT,
    DEFAULT_WEB_PORT,
    AgentJob,
    MasterJob,
    address_text,
    files_of,
)
from kvprobe.load.runner import Crew, Member
from kvprobe.load.workload import Workload
from kvprobe.run.options import Prepared, RunOptions

MAX_PROCESSES = 256
MAX_WORKERS = 1_000
AGENTS = ".agents"
_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9_.*-]{0,253}))(?::(?P<port>[0-9]{1,5}))?\Z"
)
_COUNT = re.compile(r"[1-9][0-9]{0,3}\Z")


def processes_of(options: RunOptions, workload: Workload) -> int:
    """Workers that the options ask for. Raises UsageError for what is no number, or too many."""
    count = read_count(options.processes, "--processes", MAX_PROCESSES)
    require_users(count, workload, "--processes")
    return count


def read_count(text: str | None, option: str, most: int) -> int:
    """A whole number from 1; 1 when the option was not given."""
    if text is None:
        return 1
    if not _COUNT.match(text) or int(text) > most:
        message = f"{option} takes a whole number from 1 to {most}, not {text!r}"
        raise UsageError(Problem("bad_option", message, f"write {option} 2", option))
    return int(text)


def require_users(workers: int, workload: Workload, option: str) -> None:
    """Each worker needs a user of its own."""
    closed, opened = workload.arrival.closed, workload.arrival.open
    users = closed.users if closed is not None else opened.max_in_flight if opened is not None else workers
    if workers > users:
        key = "arrival.closed.users" if closed is not None else "arrival.open.max_in_flight"
        message = f"{workers} workers cannot share {users} user{'s' if users > 1 else ''} ({key})"
        raise UsageError(Problem("too_many_workers", message, f"lower {option}, or raise `{key}`", option))


def check_scale(options: RunOptions, workload: Workload) -> None:
    """Before anything is started. Raises UsageError for options that make no crew."""
    if not options.master and (options.bind is not None or options.expect_workers is not None):
        option = "--bind" if options.bind is not None else "--expect-workers"
        message = f"{option} is for a master, and this run has none"
        raise UsageError(Problem("conflict", message, "add --master, or leave it out", option))
    processes, expected = processes_of(options, workload), _expected(options)
    if options.master:
        files_of(workload.model_dump(mode="json"))
        require_port(*parse_address(options.bind or "", "--bind"))
        local = processes if options.processes is not None else 0
        require_users(local + expected, workload, "--expect-workers")


def parse_address(text: str, option: str, host: str = "127.0.0.1") -> tuple[str, int]:
    """HOST, HOST:PORT or [V6]:PORT as host and port; empty is `host` and the usual port. UsageError."""
    match = _ADDRESS.match(text)
    port = int(match["port"]) if match and match["port"] else DEFAULT_PORT
    if match is None or port > 65535:
        message = f"{option} takes an address and perhaps a port, not {text!r}"
        raise UsageError(Problem("bad_option", message, f"write {option} 192.0.2.7:{DEFAULT_PORT}", option))
    return (match["v6"] or match["host"] or host), port


def _expected(options: RunOptions) -> int:
    """Workers of other machines."""
    return read_count(options.expect_workers, "--expect-workers", MAX_WORKERS) if options.master else 0


def make_crew(prepared: Prepared) -> Crew:
    """The processes that send this run's load, not started yet."""
    options = prepared.options
    log_path = prepared.run_dir.path / "log.txt"
    count = processes_of(options, prepared.workload)
    if options.master or options.web:
        return _led_crew(prepared, count, log_path)
    jobs = [job_of(prepared, str(index), index, count) for index in range(count)]
    return Crew([Member.of(job) for job in jobs], log_path, breaker=jobs[0].breaker)


def _led_crew(prepared: Prepared, processes: int, log_path: Path) -> Crew:
    """Locust's master, with workers of this machine (--processes, --web) and of others (--master)."""
    options = prepared.options
    local = processes if options.processes is not None or not options.master else 0
    host, port = parse_address(options.bind or "", "--bind") if options.master else ("127.0.0.1", 0)
    port = port or free_port()
    job = job_of(prepared, "master", 0, 1)
    job.files = files_of(job.workload)
    master = MasterJob(
        job=job,
        spool_dir=str(prepared.run_dir.spool_dir),
        bind_host=host,
        bind_port=port,
        expect_workers=local + _expected(options),
        web_port=DEFAULT_WEB_PORT if options.web else None,
    )
    agents = []
    for index in range(local):
        folder = prepared.run_dir.path / AGENTS / str(index)
        folder.mkdir(parents=True, exist_ok=True)
        # Listening everywhere is listening here; a name or an address of our own is used as it is.
        here = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        agent = AgentJob(master_host=here, master_port=port, spool_dir=str(folder), trusted=True)
        agents.append(Member(f"agent-{index}", msgspec.json.encode(agent), "kvprobe.load.agent"))
    lead = Member("master", msgspec.json.encode(master), "kvprobe.load.master")
    return Crew([lead], log_path, agents)


def tidy(prepared: Prepared) -> None:
    """What the workers of this machine had for the master is in the run's spool, and goes; the clocks of
    all that had one of their own go into environment.json. Raises StorageError."""
    run_dir = prepared.run_dir
    shutil.rmtree(run_dir.path / AGENTS, ignore_errors=True)
    said = run_dir.spool_dir / "master.jsonl"
    facts = read_spool(said).facts if said.is_file() else []
    clocks = [fact.value for fact in facts if fact.name == WORKER_CLOCK and isinstance(fact.value, dict)]
    if clocks:
        keys = ("worker", "host", "pid", "same_clock", "clock")
        workers = [{key: clock.get(key) for key in keys} for clock in clocks]
        known = msgspec.json.decode((run_dir.path / "environment.json").read_bytes())
        run_dir.write_json("environment.json", {**known, "workers": workers})


def require_port(host: str, port: int) -> None:
    """Where the master is to listen nobody else may; said before a target is asked anything. UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(({"*": ""}.get(host, host), port))
        except OSError as error:  # what else is wrong with an address is for the master to say
            if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                return
            why = {errno.EADDRINUSE: "the port is taken", errno.EACCES: "this user may not use the port"}
            said = why.get(error.errno, "no address of this machine")
            message = f"cannot listen on {address_text(host, port)}: {said}"
            fix = "give another one with --bind ADDRESS:PORT"
            raise UsageError(Problem("bind", message, fix, "--bind")) from error


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job_of(prepared: Prepared, name: str, index: int, count: int) -> LoadJob:
    """The job of worker number `index` of `count`."""
    workload, target = prepared.workload, prepared.target
    breaker = workload.breaker
    return LoadJob(
        workload=workload.model_dump(mode="json"),
        calibration=prepared.calibration,
        salt=prepared.salt,
        target=TargetSpec(
            base_url=target.base_url,
            model=target.model,
            api_key_env=prepared.options.api_key_env,
            insecure=prepared.options.insecure,
            addresses=list(addresses_of_url(target.base_url)),
        ),
        breaker=BreakerSpec(
            consecutive_failures=breaker.consecutive_failures,
            window=breaker.window,
            error_rate=breaker.error_rate,
        ),
        spool_path=str(prepared.run_dir.spool_dir / f"worker-{name}.jsonl"),
        worker=name,
        worker_index=index,
        workers=count,
    )
