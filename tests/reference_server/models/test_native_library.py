"""The kernels in C: compiled into a cache of one's own, and missed by nobody."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path

import pytest
import torch

from reference_server.native import library as module
from reference_server.native.library import library
from reference_server.native.packed import PackedMatrix


@pytest.fixture
def kernels() -> ctypes.CDLL:
    found = library()
    if found is None:
        pytest.skip("install a C compiler (Debian: gcc libc6-dev) for the kernels in C")
    return found


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache directory, and no memory of an earlier answer."""
    cache = tmp_path / "cache"
    monkeypatch.setenv(module.CACHE_VARIABLE, str(cache))
    monkeypatch.setattr(module, "library", module.library.__wrapped__)
    return cache


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (module.SWITCH, "0", "REFERENCE_SERVER_NATIVE=0"),
        ("CC", "no-such-compiler", "there is no C compiler"),
        ("CC", "false", "false cannot compile them"),
    ],
)
def test_without_kernels_torch_computes(
    afresh: Path,
    variable: str,
    value: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(variable, value)
    with caplog.at_level(logging.INFO):
        assert module.library() is None
    assert words in caplog.text
    assert not list(afresh.glob("*")) if afresh.exists() else True


def test_a_cache_that_others_may_write_to_is_not_trusted(
    afresh: Path, caplog: pytest.LogCaptureFixture
) -> None:
    afresh.mkdir()
    afresh.chmod(0o777)
    with caplog.at_level(logging.INFO):
        assert module.library() is None
    assert "others may write" in caplog.text


def test_they_are_compiled_once(kernels: ctypes.CDLL, afresh: Path) -> None:
    first = module.library()
    assert first is not None
    made = list(afresh.iterdir())
    assert [path.suffix for path in made] == [".so"]
    assert os.stat(afresh).st_mode & 0o077 == 0
    before = made[0].stat().st_mtime_ns
    assert module.library() is not None
    assert made[0].stat().st_mtime_ns == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (64, 64), (200, 33)])
def test_a_product_is_right_and_its_rows_know_nothing_of_each_other(
    kernels: ctypes.CDLL, rows: int, columns: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    matrix = torch.randn(rows, columns).to(dtype)
    x = torch.randn(23, columns)
    packed = PackedMatrix(matrix, kernels)
    whole = packed.apply(x)
    expected = x.double() @ matrix.double().T
    torch.testing.assert_close(whole.double(), expected, atol=1e-5, rtol=1e-5)
    for count in range(1, 14):
        assert torch.equal(packed.apply(x[:count]), whole[:count])


def test_threads_change_no_bit(kernels: ctypes.CDLL) -> None:
    matrix, x = torch.randn(1000, 96), torch.randn(9, 96)
    packed = PackedMatrix(matrix, kernels)
    before = torch.get_num_threads()
    try:
        outcomes = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            outcomes += [packed.apply(x) for _ in range(200)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)
