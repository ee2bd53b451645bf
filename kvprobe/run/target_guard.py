"""May this address be loaded, or read from, at all?

- This machine's loopback: always.
- Addresses at which clouds hand out credentials: never, whatever the user says.
- Anything else: with `--i-own-this-target`, or when the environment's allow-list names it:
  `KVPROBE_OWN_TARGETS=bench-1,.lab.example.org,10.20.0.0/16` (hosts, domains with a leading dot,
  networks). A workload file cannot grant it: files come from others.
- A name that says production is asked about once more, unless `--yes`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

from kvprobe.errors import Problem, TargetError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

ALLOW_LIST = "KVPROBE_OWN_TARGETS"
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog", "instance-data"})
METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Google Cloud, Azure, Oracle, DigitalOcean
        "169.254.170.2",  # AWS container credentials
        "169.254.170.23",
        "fd00:ec2::254",  # AWS over IPv6
        "fd00:ec2::23",
        "fd20:ce::254",  # Google Cloud over IPv6
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure's wire server
        "192.0.0.192",  # Oracle Cloud, older
    )
)
_PRODUCTION = re.compile(r"prod|prd(?![a-z])|(?<![a-z])live(?![a-z])")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def guard(base_url: str, *, own_target: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Raises `TargetError`. Every address that the name resolves to is looked at."""
    host, addresses = _resolve(base_url)
    refuse_metadata(host, addresses)
    others = [a for a in addresses if not is_loopback(a)]
    if others and not own_target and not _allowed(host, others, environ.get(ALLOW_LIST, "")):
        where = ", ".join(sorted(map(str, addresses)))
        raise TargetError(
            Problem(
                "guard",
                f"`{host}` is not this machine ({where}): a load test can take a server down",
                f"add --i-own-this-target if you may load it (or name it in {ALLOW_LIST})",
            )
        )


def _resolve(url: str) -> tuple[str, set[Address]]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if host.rstrip(".").lower() in METADATA_NAMES:
        raise _credentials(host)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TargetError(
            Problem("dns", f"cannot resolve the host `{host}`: {error}", "check the name, or use an address")
        ) from error
    return host, {unwrapped(ipaddress.ip_address(str(info[4][0]).split("%")[0])) for info in found}


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one (mapped, 6to4, NAT64), else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in ipaddress.ip_network("64:ff9b::/96"):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_loopback(address: Address) -> bool:
    """127.0.0.0/8 or ::1."""
    return unwrapped(address).is_loopback


def refuse_metadata(host: str, addresses: set[Address]) -> None:
    """Raises `TargetError` for an address at which clouds hand out credentials (and for all
    link-local ones, where such services live and model servers do not)."""
    if any(a.is_link_local or a in METADATA_ADDRESSES for a in addresses):
        raise _credentials(host)


def _credentials(host: str) -> TargetError:
    message = f"`{host}` is an address at which clouds hand out credentials, and no model server"
    return TargetError(Problem("guard", message, "give the address of the server itself"))


def _allowed(host: str, addresses: list[Address], allow_list: str) -> bool:
    words = [word.strip().lower() for word in allow_list.split(",") if word.strip()]
    name = host.rstrip(".").lower()
    if any(name == w or (w.startswith(".") and name.endswith(w)) for w in words):
        return True
    networks = [n for w in words if (n := _network(w)) is not None]
    return all(any(a in n for n in networks if n.version == a.version) for a in addresses)


def _network(word: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(word, strict=False)
    except ValueError:
        return None


def names_production(base_url: str) -> bool:
    """Whether the host's name says that people depend on it."""
    return _PRODUCTION.search((urlsplit(base_url).hostname or "").lower()) is not None


def confirm_production(base_url: str, *, yes: bool) -> None:
    """Ask once more on the terminal; without one, `--yes` is needed. Raises `TargetError`."""
    if yes or not names_production(base_url):
        return
    host = urlsplit(base_url).hostname or ""
    message = f"`{host}` has the name of a production system"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise TargetError(Problem("production", message, "add --yes if you mean it"))
    sys.stderr.write(f"{message}. Type the host name to load it: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() != host.lower():
        raise TargetError(Problem("production", f"{message}, and it was not confirmed", "nothing was sent"))


def proxies_set(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Proxy variables that are set, as they are written; their values can hold passwords."""
    return sorted(name for name, value in environ.items() if name.lower() in _PROXIES and value)


def proxy_statement(names: list[str], metrics_url: str) -> str | None:
    """What becomes of the proxies, for people; null when none is set."""
    if not names:
        return None
    host = (urlsplit(metrics_url).hostname or "").strip("[]")
    try:
        local = is_loopback(ipaddress.ip_address(host))
    except ValueError:
        local = host == "localhost"
    metrics = "" if local else "; the metrics page is read through it"
    return f"{', '.join(names)} set: the load does not use the proxy and goes straight to the target{metrics}"
