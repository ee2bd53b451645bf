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
    "argv", [["--help"], ["run", "--help"], ["report", "--help"], ["schema"], ["--version"]]
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    loaded = modules_after(f"from kvprobe.cli.main import main\nassert main({argv!r}) == 0")
    assert loaded.isdisjoint(HEAVY)


def test_no_module_of_kvprobe_imports_torch() -> None:
    """Every module but the worker's own (it patches the process for gevent) in one process."""
    loaded = modules_after(
        "import importlib, pkgutil, kvprobe\n"
        "for m in pkgutil.walk_packages(kvprobe.__path__, 'kvprobe.'):\n"
        "    if m.name.split('.')[-1] not in ('__main__', 'worker', 'users', 'connection'):\n"
        "        importlib.import_module(m.name)"
    )
    assert "kvprobe.run.session" in loaded
    assert "torch" not in loaded
    assert "reference_server" not in loaded
    assert "gevent" not in loaded, "the parent must not be patched by gevent"


def test_the_worker_imports_neither_torch_nor_pandas() -> None:
    loaded = modules_after("import kvprobe.load.worker")
    assert "gevent" in loaded
    assert loaded.isdisjoint({"torch", "pandas", "pyarrow"})
