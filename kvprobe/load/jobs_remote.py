"""What the command line gives to the two processes that speak to other machines."""

from __future__ import annotations

import msgspec

from kvprobe.load.job import LoadJob

DEFAULT_PORT = 5557
"""Locust's own, for its master."""
LOST_AFTER_S = 6.0
"""A worker, or a master, that says nothing for so long is lost: each speaks once a second or oftener."""
DEFAULT_WEB_PORT = 8089
"""Locust's own, for its page."""


class MasterJob(msgspec.Struct, kw_only=True):
    """For `python -m kvprobe.load.master`. `job` is what every worker gets, but for its name and share."""

    job: LoadJob
    spool_dir: str
    bind_host: str
    bind_port: int
    """0: a free one."""
    expect_workers: int
    lost_after_s: float = LOST_AFTER_S
    web_port: int | None = None
    """Port of Locust's page on 127.0.0.1; null for no page, 0 for a free one."""


class AgentJob(msgspec.Struct, kw_only=True):
    """For `python -m kvprobe.load.agent`."""

    master_host: str
    master_port: int
    spool_dir: str
    api_key_env: str | None = None
    """The variable on this machine; null takes the name that the master says."""
    lost_after_s: float = LOST_AFTER_S
    trusted: bool = False
    """The master is this machine's own: nobody has to be asked."""


class Offer(msgspec.Struct, kw_only=True):
    """What a master asks of this machine, for whoever has to allow it."""

    base_url: str
    workload: str
    insecure: bool
