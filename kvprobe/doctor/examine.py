"""All checks together, in the order in which a person would ask."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvprobe.doctor import machine
from kvprobe.doctor.model import Check, Examination

DEFAULT_STREAMS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the command line asked for."""

    target: str | None = None
    model: str | None = None
    metrics_url: str | None = None
    api_key_env: str | None = None
    streams: int = DEFAULT_STREAMS
    out: Path = Path("runs")
    insecure: bool = False
    self_test: bool = True


def examine(question: Question, say: Callable[[str], None]) -> Examination:
    """Raises `KvprobeError` for an address that is none, or that the guard refuses."""
    checks: list[Check] = []
    base_url = None
    if question.target is not None:
        from kvprobe.run import target as targets

        base_url = targets.normalise_url(question.target)
        say(f"asking {base_url} ...")
        checks += _of_target(question, base_url)
    checks += [
        machine.gpu(),
        machine.descriptors(question.streams),
        machine.disk(question.out),
        machine.cores(base_url, local=base_url is not None and _is_here(base_url)),
        machine.proxies(base_url),
    ]
    checks.append(_headroom(question, checks, say))
    return Examination(target=base_url, ok=all(c.status != "fail" for c in checks), checks=checks)


def _of_target(question: Question, base_url: str) -> list[Check]:
    from kvprobe.doctor.target import Asked, check_target
    from kvprobe.run import target as targets

    key = targets.api_key(question.api_key_env)
    metrics_url = (
        targets.page_url(question.metrics_url) if question.metrics_url is not None else f"{base_url}/metrics"
    )
    here, there = urlsplit(base_url), urlsplit(metrics_url)
    same_origin = (here.scheme, here.netloc) == (there.scheme, there.netloc)
    with targets.control_client(key, insecure=question.insecure) as client:
        return check_target(
            Asked(
                client=client,
                base_url=base_url,
                model=question.model,
                metrics_url=metrics_url,
                metrics_headers={"authorization": f"Bearer {key}"} if key and same_origin else {},
                insecure=question.insecure,
            )
        )


def _headroom(question: Question, checks: list[Check], say: Callable[[str], None]) -> Check:
    if not question.self_test:
        return Check(id="client_headroom", status="skipped", text="not looked at: --no-self-test")
    if any(c.id in ("descriptors", "disk") and c.status == "fail" for c in checks):
        text = "not looked at: it needs the descriptors and the disk that are missing"
        return Check(id="client_headroom", status="skipped", text=text)
    from kvprobe.doctor.headroom import headroom

    say(f"measuring this machine's client with {question.streams} streams ...")
    return headroom(question.streams)


def _is_here(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
