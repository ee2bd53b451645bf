"""What the command line imports, and when."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "pandas", "numpy", "pyarrow", "locust", "gevent", "httpx", "pydantic", "rich")


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["run", "--help"],
        ["report", "--help"],
        ["schema"],
        ["--version"],
        ["compare", "--help"],
        ["doctor", "--help"],
        ["watch", "--help"],
        ["replay", "--help"],
    ],
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    loaded = modules_after(f"from kvprobe.cli.main import main\nassert main({argv!r}) == 0")
    assert loaded.isdisjoint(HEAVY)


def test_no_module_of_kvprobe_imports_torch() -> None:
    loaded = modules_after(
        "import locust  # first of all, as in the worker\n"
        "import importlib, pkgutil, kvprobe\n"
        "for m in pkgutil.walk_packages(kvprobe.__path__, 'kvprobe.'):\n"
        "    if not m.name.endswith('__main__'):\n"
        "        importlib.import_module(m.name)"
    )
    assert {"kvprobe.run.session", "kvprobe.load.worker"} <= loaded
    assert loaded.isdisjoint({"torch", "reference_server"})


def test_the_parent_is_not_patched_by_gevent() -> None:
    loaded = modules_after(
        "import kvprobe.run.session, kvprobe.report.terminal, kvprobe.summary.build, kvprobe.diagnose.judge"
    )
    assert "kvprobe.observe.sampler" in loaded
    assert loaded.isdisjoint({"gevent", "locust"})


def test_the_worker_imports_neither_torch_nor_pandas() -> None:
    loaded = modules_after("import kvprobe.load.worker")
    assert "gevent" in loaded
    assert loaded.isdisjoint({"torch", "pandas", "pyarrow"})
