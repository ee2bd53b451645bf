"""Which addresses a host had when the guard looked at it.

A name server may answer differently the next time (by accident, or to lead a load past the guard), so
what was checked is also what is connected to: whoever opens connections asks here before the resolver.
Kept for the life of the process; other processes of a run are told with their job.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

_checked: dict[str, tuple[str, ...]] = {}


def remember(host: str, addresses: Iterable[str]) -> None:
    """From now on `host` is these addresses, in this order."""
    for name in _spellings(host):
        _checked[name] = tuple(dict.fromkeys(addresses))


def addresses_of(host: str) -> tuple[str, ...]:
    """The checked addresses; empty for a host that was never looked at."""
    return _checked.get(host.lower(), ())


def addresses_of_url(url: str) -> tuple[str, ...]:
    """`addresses_of` the URL's host."""
    return addresses_of(urlsplit(url).hostname or "")


def forget() -> None:
    """Nothing was looked at."""
    _checked.clear()


def _spellings(host: str) -> set[str]:
    """As written, and as it goes over the wire."""
    names = {host.lower()}
    if not host.isascii():
        import httpx

        names.add(httpx.URL(scheme="http", host=host).raw_host.decode("ascii").lower())
    return names
