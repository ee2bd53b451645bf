"""The GPU check's own logic, tried on a CPU: with less work, and kernels in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="install triton (the extra `test` does, on x86-64 Linux)")

from tests.gpu import check

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", check.PARTS)
def test_a_part_can_be_tried_without_a_gpu(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"device": "none", "torch": torch.__version__, "parts": {}}
    failed = check.check({name: check.PARTS[name]}, "cpu", results, tmp_path)
    found = json.loads((tmp_path / "check.json").read_text())["parts"][name]
    assert (failed, found["ok"]) == (0, True), found
    assert found["found"]
    assert name in (tmp_path / "check.md").read_text()
    assert capsys.readouterr().out.startswith("ok ")


def test_a_part_that_fails_is_told_and_the_next_one_tried(tmp_path: Path) -> None:
    def fails(device: str) -> dict[str, int]:
        raise AssertionError("off by 3")

    parts = {"bad": fails, "good": lambda device: {"figure": 1}}
    results = {"device": "none", "torch": "x", "parts": {}}
    assert check.check(parts, "cpu", results, tmp_path) == 1
    lines = (tmp_path / "check.md").read_text()
    assert "FAILED" in lines
    assert "off by 3" in lines
    assert "figure" in lines


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    assert check.main(["--out", str(tmp_path)]) == 2
    for python, words in ((sys.executable, "sees no CUDA device"), ("/no/python", "no such Python")):
        done = subprocess.run(
            ["bash", str(HERE / "check.sh"), python],
            capture_output=True,
            text=True,
            env=os.environ,
            timeout=100,
        )
        assert done.returncode == 2
        assert words in done.stderr
        assert not done.stdout
