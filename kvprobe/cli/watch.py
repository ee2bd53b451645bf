"""`kvprobe watch URL...`: the KV water level of running servers, live, with what it means in words.

On a terminal a page that renews itself; elsewhere a line a target and tick. With --once two looks, one
interval apart, because a rate needs two. With --json one document for --once, else one a tick on a line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.cli.streams import emit
from kvprobe.errors import Exit, Problem, TargetError, UsageError

if TYPE_CHECKING:
    from kvprobe.watch.loop import Watch
    from kvprobe.watch.model import Failure, WatchDocument

_EPILOG = """\
URL is a server (http://127.0.0.1:8000, looked at under /metrics) or a page of its own. Several stand side by
side. It leaves with 3 when no target can be read at the start; one of several that cannot is shown so, and a
target that goes away later is waited for.

Each option can also come from the environment, where an option given here beats it: KVPROBE_INTERVAL,
KVPROBE_API_KEY_ENV; 1 or 0 in KVPROBE_ONCE, KVPROBE_I_OWN_THIS_TARGET, KVPROBE_INSECURE, KVPROBE_QUIET,
KVPROBE_NO_COLOR.
"""
SHORTEST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 3600.0
SILENT_S = 2.0
"""Nobody waits longer for --once without a word."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "watch",
        help="live view of a server's KV water level, queue and hit rate",
        description=__doc__,
        epilog=_EPILOG,
    )
    parser.add_argument("urls", metavar="URL", nargs="+", help="a server, or its /metrics page")
    parser.add_argument("--interval", metavar="1s", help="how often to look (100ms to 1h; default 1s)")
    parser.add_argument("--once", action="store_true", help="two looks, one result, then the end")
    parser.add_argument(
        "--i-own-this-target", action="store_true", help="read a server that is not this machine"
    )
    parser.add_argument("--api-key-env", metavar="VAR", help="variable that holds the key of the page")
    parser.add_argument("--insecure", action="store_true", help="do not verify TLS certificates")
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from_environment(
        args,
        ("interval", "api_key_env"),
        ("once", "i_own_this_target", "insecure", "quiet", "no_color"),
    )
    interval_s = _interval_s(args.interval)
    watch = _open(args, interval_s)
    try:
        first = watch.first()
        _refuse_if_all_gone(first)
        if args.once:
            if interval_s > SILENT_S and not args.quiet and sys.stderr.isatty():
                print(f"looking again in {interval_s:g} s ...", file=sys.stderr)
            _show_once(next(watch.ticks()), args)
            return Exit.OK
        _follow(watch, first, args)
    except KeyboardInterrupt as interrupt:
        # The usual way to end it: no error, but the code of a signal.
        code: int = getattr(interrupt, "exit_code", Exit.SIGINT)
        return code
    finally:
        watch.close()
    return Exit.OK


def _interval_s(text: str | None) -> float:
    from kvprobe.load.workload_base import parse_duration

    if text is None:
        return 1.0
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        message, fix = f"--interval {text}: this is not a duration", "write 500ms, 1s or 2m"
        raise UsageError(Problem("bad_duration", message, fix)) from error
    if not SHORTEST_INTERVAL_S <= seconds <= LONGEST_INTERVAL_S:
        message = f"--interval {text} is outside 100ms to 1h"
        raise UsageError(Problem("bad_value", message, "a look each second is enough to see a queue"))
    return seconds


def _open(args: argparse.Namespace, interval_s: float) -> Watch:
    from urllib.parse import urlsplit

    from kvprobe.run.target import api_key
    from kvprobe.watch.gpus import Gpus
    from kvprobe.watch.loop import Watch
    from kvprobe.watch.target import WatchedTarget, is_local, page_address

    urls = list(dict.fromkeys(map(page_address, args.urls)))
    later = _checked(urls, own_target=args.i_own_this_target)
    key = api_key(args.api_key_env)
    if key is not None and len({urlsplit(url)[:2] for url in urls}) > 1:
        message = "--api-key-env would give one key to several servers"
        raise UsageError(Problem("conflict", message, "watch the server with the key by itself"))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    targets = [
        WatchedTarget(u, headers, insecure=args.insecure, interval_s=interval_s, unchecked=later.get(u))
        for u in urls
    ]
    return Watch(targets, Gpus(local=any(is_local(url) for url in urls)), interval_s)


def _checked(urls: list[str], *, own_target: bool) -> dict[str, Callable[[str], None]]:
    """The URLs whose check has to be made later: of several, one whose name nobody knows does not take the
    others with it. Raises `TargetError` for what is refused, and where no name can be resolved."""
    from kvprobe.watch.target import check

    def ask(url: str) -> None:
        check(url, own_target=own_target)

    unknown: dict[str, TargetError] = {}
    for url in urls:
        try:
            ask(url)
        except TargetError as error:
            if error.problems[0].code != "dns":
                raise
            unknown[url] = error
    if unknown and len(unknown) == len(urls):
        raise TargetError(*(error.problems[0] for error in unknown.values()))
    return dict.fromkeys(unknown, ask)


def _fix(failure: Failure | None) -> str:
    if failure is not None and "CERTIFICATE_VERIFY_FAILED" in failure.text:
        return "trust its certificate (SSL_CERT_FILE), or add --insecure"
    if failure is not None and "WRONG_VERSION_NUMBER" in failure.text:
        return "write http://: this port speaks no TLS"
    return "start the server, or check the URL"


def _refuse_if_all_gone(document: WatchDocument) -> None:
    failures = [(view.url, view.failure) for view in document.targets if not view.reachable]
    if len(failures) < len(document.targets):
        return
    raise TargetError(
        *(
            Problem(failure.kind, f"{url}: {failure.text}", _fix(failure))
            if failure is not None
            else Problem("timeout", f"{url}: no answer in time", _fix(None))
            for url, failure in failures
        )
    )


def _show_once(document: WatchDocument, args: argparse.Namespace) -> None:
    if args.json:
        _emit_json(document)
        return
    from kvprobe.cli.present import show
    from kvprobe.watch.panel import page

    empty: list[list[tuple[float, float]]] = [[] for _ in document.targets]
    show(lambda console: console.print(page(console, document, empty, live=False)), no_color=args.no_color)


def _follow(watch: Watch, first: WatchDocument, args: argparse.Namespace) -> None:
    """Until a signal ends it, or nobody reads stdout any more."""
    if not args.json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _live(watch, first, no_color=args.no_color)
        return
    show = _emit_json if args.json else _emit_lines
    show(first)
    for document in watch.ticks():
        show(document)


def _emit_lines(document: WatchDocument) -> None:
    from kvprobe.watch.plain import lines

    emit("\n".join(lines(document)) + "\n")


def _emit_json(document: WatchDocument) -> None:
    from kvprobe.watch.model import document as plain

    emit(json.dumps(plain(document), allow_nan=False) + "\n")


def _live(watch: Watch, first: WatchDocument, *, no_color: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from kvprobe.watch.panel import page

    plain = no_color or bool(os.environ.get("NO_COLOR"))
    console = Console(no_color=plain, highlight=False, markup=False, emoji=False)
    histories = [target.history for target in watch.targets]

    def draw(document: WatchDocument) -> Any:
        return page(console, document, [list(history) for history in histories], live=True)

    with Live(draw(first), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for document in watch.ticks():
            live.update(draw(document), refresh=True)
