"""`docs/server-log.md` lists every line that the server's code can write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference_server.log_lines import PAGE

SERVER = Path(__file__).parents[2] / "reference_server"
LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
}
ELSEWHERE = {"startup_log": "build", "refusals": "api"}
"""Modules that write to another's logger."""
_VALUE = re.compile(r"%[-+#0 .\d]*[a-zA-Z]|%%")


def _written() -> Iterator[tuple[str, str, str]]:
    """Level, logger and format of each call that logs a literal."""
    for path in sorted(SERVER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            first = node.args[0]
            to_log = re.search("log|shortages|by_status", ast.unparse(node.func.value))
            if node.func.attr not in LEVELS or not to_log:
                continue
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield LEVELS[node.func.attr], ELSEWHERE.get(path.stem, path.stem), first.value


CALLS = list(_written())
ROWS = [
    (level, logger, line)
    for level, logger, line in re.findall(r"^\| ([A-Z]+) `(\w+)` \| (.*) \|$", PAGE.read_text(), re.M)
]


def _stands_in(line: str, form: str) -> bool:
    """Whether the words between a format's values stand in a line, in order."""
    at = 0
    for words in _VALUE.split(form):
        found = line.find(words, at)
        if found < 0:
            return False
        at = found + len(words)
    return True


def test_the_calls_are_found() -> None:
    assert {"build", "core", "engine", "serve", "answer", "api", "statsline", "connection"} <= {
        logger for _, logger, _ in CALLS
    }


@pytest.mark.parametrize(("level", "logger", "form"), CALLS, ids=[f"{c[1]}: {c[2][:40]}" for c in CALLS])
def test_the_page_has_the_line(level: str, logger: str, form: str) -> None:
    rows = [line for row_level, row_logger, line in ROWS if (row_level, row_logger) == (level, logger)]
    assert any(_stands_in(line, form) for line in rows), f"{level} {logger}: {form}"


def test_the_page_has_no_line_that_nobody_writes() -> None:
    for level, logger, line in ROWS:
        forms = [
            form for call_level, call_logger, form in CALLS if (call_level, call_logger) == (level, logger)
        ]
        assert any(_stands_in(line, form) for form in forms), line


def test_all_loggers_are_the_servers_own() -> None:
    """uvicorn's would write in words that no reader knows; its errors alone are let through."""
    for path in SERVER.rglob("*.py"):
        assert "self.logger" not in path.read_text(), path
