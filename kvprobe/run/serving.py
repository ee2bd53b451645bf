"""`--serve-metrics`: the page of the run's own numbers, there from before the first request to the last."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from kvprobe.run.options import Prepared, RunOptions
from kvprobe.run.progress import Progress

if TYPE_CHECKING:
    from kvprobe.export.live import PageServer


def metrics_page(options: RunOptions, progress: Progress, stack: ExitStack) -> PageServer | None:
    """Binds the port before anything is sent; raises `UsageError` where it cannot be had."""
    if options.serve_metrics_port is None:
        return None
    from kvprobe.export.live import PageServer, parse_port

    server = stack.enter_context(PageServer(parse_port(options.serve_metrics_port)))
    progress.say(f"this run's metrics: {server.url}")
    return server


def follow(server: PageServer, prepared: Prepared) -> None:
    """The page is of this run from now on."""
    labels = {
        "workload": prepared.workload.name,
        "model": prepared.target.model,
        "run": prepared.run_dir.path.name,
    }
    server.page.follow(prepared.run_dir.spool_dir, labels)
