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

from kvprobe.checked_addresses import remember
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
    """Raises `TargetError`. Every address that the name resolves to is looked at, and these are what this
    process and its workers connect to from here on, whatever a name server says later."""
    host, found = _resolve(base_url)
    addresses = {_plain(ipaddress.ip_address(text)) for text in found}
    refuse_metadata(host, addresses)
    others = [a for a in addresses if not is_loopback(a)]
    allowed = environ.get(ALLOW_LIST, "")
    if others and not own_target and not _allowed(host, others, allowed):
        where = ", ".join(sorted(map(str, addresses)))
        message = f"`{host}` is not this machine ({where}): a load test can take a server down"
        if unusable := _unusable(allowed):
            message += f"; {ALLOW_LIST} holds what is no host, .domain or network: {', '.join(unusable)}"
        raise TargetError(Problem("guard", message, _guard_fix(addresses)))
    remember(host, found)


def _guard_fix(addresses: set[Address]) -> str:
    if all(a.is_unspecified for a in addresses):
        return "write 127.0.0.1 for this machine (else add --i-own-this-target)"
    return f"add --i-own-this-target if you may load it (or name it in {ALLOW_LIST})"


def _resolve(url: str) -> tuple[str, list[str]]:
    """The URL's host, and its addresses in the resolver's order."""
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
    return host, list(dict.fromkeys(str(info[4][0]).split("%")[0] for info in found))


def _plain(address: Address) -> Address:
    """::ffff:a.b.c.d is only another way to write a.b.c.d: the kernel speaks IPv4 with it."""
    return getattr(address, "ipv4_mapped", None) or address


_LAST_32_BITS = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "64:ff9b::/96",  # NAT64 (RFC 6052)
        "64:ff9b:1::/48",  # NAT64 of a site (RFC 8215), as /96
        "::ffff:0:0:0/96",  # SIIT (RFC 7915)
        "::/96",  # IPv4-compatible (RFC 4291), no longer in use
    )
)


def embedded(address: Address) -> set[Address]:
    """The address, and each IPv4 address that a gateway or tunnel could make of it."""
    address = _plain(address)
    found: set[Address] = {address}
    if isinstance(address, ipaddress.IPv6Address):
        if any(address in network for network in _LAST_32_BITS):
            found.add(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.sixtofour is not None:
            found.add(address.sixtofour)
        if address.teredo is not None:
            found.update(address.teredo)
    return found


def is_loopback(address: Address) -> bool:
    """127.0.0.0/8 or ::1. What a gateway would make of an address is not this machine."""
    return _plain(address).is_loopback


def refuse_metadata(host: str, addresses: set[Address]) -> None:
    """Raises `TargetError` for an address at which clouds hand out credentials (and for all
    link-local ones, where such services live and model servers do not)."""
    if any(a.is_link_local or a in METADATA_ADDRESSES for each in addresses for a in embedded(each)):
        raise _credentials(host)


def _credentials(host: str) -> TargetError:
    message = f"`{host}` is an address at which clouds hand out credentials, and no model server"
    return TargetError(Problem("guard", message, "give the address of the server itself"))


def _allowed(host: str, addresses: list[Address], allow_list: str) -> bool:
    words = _words(allow_list)
    name = host.rstrip(".").lower()
    in_domain = any(w.startswith(".") and name.endswith(w) for w in words)
    if name in words or (in_domain and not _ends_in_number(name)):
        return True
    networks = [n for w in words if (n := _network(w)) is not None]
    return all(any(a in n for n in networks if n.version == a.version) for a in addresses)


def _ends_in_number(name: str) -> bool:
    """Whether it is an address, in any of the forms that resolvers take: no domain can mean it."""
    last = name.rpartition(".")[2]
    return ":" in name or last.isdigit() or last.startswith("0x")


_HOST_WORD = re.compile(r"\.?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?\Z")


def _words(allow_list: str) -> list[str]:
    return [word.strip().lower() for word in allow_list.split(",") if word.strip()]


def _unusable(allow_list: str) -> list[str]:
    """Words that can never allow anything, such as a URL or a host with its port; without what could be
    a password or a key in them."""
    bad = [w for w in _words(allow_list) if _network(w) is None and not _HOST_WORD.match(w)]
    return [re.sub(r".*@", "...@", w.partition("?")[0])[:60] for w in bad]


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
