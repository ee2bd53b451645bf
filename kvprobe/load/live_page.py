"""Locust's own page as a live view: it shows, and changes nothing.

Its figures are Locust's (rounded percentiles of whole requests); the report has ours. Bound to
127.0.0.1, no request from another site's page is answered, and every button that would start, stop
or reset something is refused: a load that somebody changed by hand measures nothing.
"""

from __future__ import annotations

import socket
from typing import Any

import gevent
from locust.stats import stats_history

_READS = ("/", "/assets/", "/stats/", "/exceptions", "/tasks", "/logs", "/worker-count", "/favicon")
_WRITES = ("/stats/reset",)


class LivePage:
    """The page of a master runner, while the object lives."""

    def __init__(self, runner: Any, port: int) -> None:
        port = _free_port(port)
        self.url = f"http://127.0.0.1:{port}/"
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self._ui = runner.environment.create_web_ui(host="127.0.0.1", port=port, delayed_start=True)
        self._ui.app.debug = False
        self._ui.app.before_request(self._refuse)
        # What stands first runs last: after the extension that would open the page to all.
        self._ui.app.after_request_funcs.setdefault(None, []).insert(0, _close_to_others)
        self._ui.start()
        self._history = gevent.spawn(stats_history, runner)

    def close(self) -> None:
        """Stop serving."""
        self._history.kill(block=False)
        self._ui.stop()

    def _refuse(self) -> tuple[str, int] | None:
        from flask import request

        if request.host not in self._hosts:
            return "this page is for 127.0.0.1 alone", 403
        reads = request.path == "/" or any(request.path.startswith(p) for p in _READS[1:])
        if request.method != "GET" or not reads or request.path in _WRITES:
            return "this page only shows; stop the run with Ctrl-C where it was started", 403
        return None


def _close_to_others(response: Any) -> Any:
    """Locust lets every site's scripts read the page; here none may."""
    response.headers.pop("Access-Control-Allow-Origin", None)
    return response


def _free_port(wanted: int) -> int:
    """The port that was asked for, or a free one when it is taken or 0."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return wanted
