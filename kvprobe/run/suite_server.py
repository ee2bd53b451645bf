"""The bundled server of a suite: one process for as long as the options stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvprobe.run.embedded import EmbeddedServer, require_server_extra
from kvprobe.run.progress import Progress


class SuiteServer:
    """Starts, keeps and replaces the server; its logs lie in the suite's folder, one a process."""

    def __init__(self, folder: Path, progress: Progress, hurried: Callable[[], bool]) -> None:
        self._folder, self._progress, self._hurried = folder, progress, hurried
        self.server: EmbeddedServer | None = None
        self._started = 0

    @property
    def base_url(self) -> str | None:
        return self.server.base_url if self.server is not None else None

    @property
    def gone(self) -> bool:
        """It was started and is not there any more."""
        return self.server is not None and not self.server.alive()

    def ready(self, args: tuple[str, ...], *, fresh: bool = False) -> EmbeddedServer:
        """A server with exactly these options, listening; `fresh` asks for a new one in any case.
        Raises `KvprobeError`."""
        same = self.server is not None and self.server.args == args and self.server.alive()
        if self.server is not None and same and not fresh:
            return self.server
        self.stop()
        require_server_extra()
        told = f" with {' '.join(args)}" if args else ""
        self._progress.say(f"starting the bundled reference server{told} ...")
        self.server = EmbeddedServer(args, self._folder, self._hurried)
        self.server.start()
        self._started += 1
        self.server.move_log(self._folder / f"server-{self._started}.log")
        return self.server

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None
