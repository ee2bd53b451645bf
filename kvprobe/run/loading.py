"""The load itself: the workers send, the sampler watches, the steering waits."""

from __future__ import annotations

from urllib.parse import urlsplit

from kvprobe.errors import Exit, KvprobeError, Problem, StorageError, gravest
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.load.runner import Crew
from kvprobe.observe.sampler import Sampler
from kvprobe.run.crews import make_crew, tidy
from kvprobe.run.interrupts import Interrupts
from kvprobe.run.options import LoadEnding, Prepared
from kvprobe.run.progress import Progress
from kvprobe.run.steering import Steering


def run_load(prepared: Prepared, progress: Progress, interrupts: Interrupts) -> LoadEnding:
    """Run until the workers have finished, by themselves or because they were told to. Never raises
    for what happens in the load: the ending says it."""
    run_dir = prepared.run_dir
    crew = make_crew(prepared)
    try:
        with SpoolWriter(run_dir.spool_dir / "samples.jsonl", "sampler") as spool:
            ending = _with_sampler(prepared, crew, spool, progress, interrupts)
        crew.close()
        try:
            tidy(prepared)
        except StorageError as error:
            ending.problems.extend(error.problems)
            ending.exit_code = gravest(ending.exit_code, Exit.STORAGE)
        return ending
    except StorageError as error:
        return LoadEnding(
            reason="storage", detail=str(error), exit_code=Exit.STORAGE, problems=list(error.problems)
        )
    finally:
        crew.close()
        progress.close()


def _with_sampler(
    prepared: Prepared, crew: Crew, spool: SpoolWriter, progress: Progress, interrupts: Interrupts
) -> LoadEnding:
    sampler = Sampler(
        prepared.metrics_url,
        prepared.workload.sampling.metrics_interval_s,
        spool,
        server_pid=prepared.server.pid if prepared.server is not None else None,
        headers=metrics_headers(prepared),
        insecure=prepared.options.insecure,
    )
    crew.start()
    try:
        ending = Steering(prepared, crew, sampler, progress, interrupts).run()
    except BaseException:
        sampler.stop()
        raise
    _end_sampling(sampler, ending)
    return ending


def metrics_headers(prepared: Prepared) -> dict[str, str]:
    """The key goes to the target's own origin only, never to another address of --metrics."""
    here, there = urlsplit(prepared.target.base_url), urlsplit(prepared.metrics_url)
    same_origin = (here.scheme, here.netloc) == (there.scheme, there.netloc)
    return {"authorization": f"Bearer {prepared.api_key}"} if prepared.api_key and same_origin else {}


def _end_sampling(sampler: Sampler, ending: LoadEnding) -> None:
    """The last full scrape; a sampler that had to give up is a problem of the run, not its end."""
    try:
        sampler.mark("load_end")
    except StorageError as error:
        ending.problems.extend(error.problems)
        ending.exit_code = gravest(ending.exit_code, Exit.STORAGE)
    sampler.stop()
    if isinstance(sampler.failure, KvprobeError):
        ending.problems.extend(p for p in sampler.failure.problems if p not in ending.problems)
        ending.exit_code = gravest(ending.exit_code, sampler.failure.exit_code)
    elif sampler.failure is not None:
        ending.problems.append(
            Problem("sampler", f"sampling stopped early: {sampler.failure!r}", "the records are complete")
        )
