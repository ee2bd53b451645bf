"""Where an option comes from, and that messages name what the user typed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kvprobe.cli.main import main
from kvprobe.cli.options import from_environment
from kvprobe.errors import Exit, UsageError

NOBODY = ("--target", "http://127.0.0.1:9")


def errors(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, str]]:
    """Of a `run` that must be refused before any traffic."""
    assert main(["run", "shared_prefix", *argv, "--json"]) == Exit.USAGE
    loaded = json.loads(capsys.readouterr().out)["errors"]
    assert isinstance(loaded, list)
    return loaded


@pytest.mark.parametrize(
    ("argv", "path", "named"),
    [
        (("--users", "abc"), "--users abc", "`--users`"),
        (("--users", "0"), "--users 0", "`--users`"),
        (("--rate", "-1"), "--rate -1", "`--rate`"),
        (("--rate", "fast/s"), "--rate fast", "`--rate`"),
        (("--duration", "60"), "--duration 60", "`--duration`"),
    ],
)
def test_a_short_form_is_named_as_it_was_typed(
    argv: tuple[str, ...], path: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (error,) = errors(capsys, *argv)
    assert error["path"] == path
    assert named in error["message"]
    assert "arrival" not in json.dumps(error)


def test_a_rate_may_carry_its_unit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "shared_prefix", "--rate", "4/s", "--out", str(tmp_path), *NOBODY]) == Exit.TARGET


def test_a_variable_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPROBE_USERS", "many")
    (error,) = errors(capsys)
    assert error["path"] == "KVPROBE_USERS=many"
    assert "`KVPROBE_USERS`" in error["message"]


def test_an_option_beats_the_variable_of_what_it_excludes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPROBE_USERS", "3")
    assert main(["run", "shared_prefix", "--rate", "2", "-q", *NOBODY]) == Exit.TARGET
    monkeypatch.setenv("KVPROBE_RATE", "2")
    (error,) = errors(capsys)
    assert "KVPROBE_USERS and KVPROBE_RATE" in error["message"]


def test_empty_variables_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROBE_OUT", "")
    args = argparse.Namespace(out=None, insecure=False)
    assert from_environment(args, ("out",), ("insecure",)) == {}
    assert (args.out, args.insecure) == (None, False)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("off", False), ("0", False)])
def test_flags_of_the_environment(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROBE_INSECURE", text)
    args = argparse.Namespace(insecure=False)
    from_environment(args, (), ("insecure",))
    assert args.insecure is value


def test_a_flag_that_is_neither_true_nor_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROBE_I_OWN_THIS_TARGET", "maybe")
    args = argparse.Namespace(i_own_this_target=False)
    with pytest.raises(UsageError, match="KVPROBE_I_OWN_THIS_TARGET"):
        from_environment(args, (), ("i_own_this_target",))


def test_options_of_the_bundled_server_need_the_bundled_server(capsys: pytest.CaptureFixture[str]) -> None:
    (error,) = errors(capsys, "--serve-args=--block-size 8", *NOBODY)
    assert error["code"] == "conflict"


def test_a_value_that_looks_like_an_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    (error,) = errors(capsys, "--serve-args", "--no-prefix-caching")
    assert "--serve-args='VALUE'" in error["fix"]


@pytest.mark.parametrize(
    "argv",
    [
        ("--set", "request.extra_body.api_key=sk-canary"),
        ("--set", "request.extra_body={headers: [{X-Api-Key: sk-canary}]}"),
        ("--target", "http://user:sk-canary@127.0.0.1:9"),
        ("--target", "ftp://user:sk-canary@127.0.0.1:9"),
        ("--target", "http://user:sk-canary@[bad"),
        ("--target", "http://127.0.0.1:bad?key=sk-canary"),
        ("--metrics", "http://user:sk-canary@127.0.0.1:9/metrics"),
        ("--metrics", "ftp://127.0.0.1/?key=sk-canary"),
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_without_showing_it(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "shared_prefix", *argv]) == Exit.USAGE
    text = capsys.readouterr().err
    assert "canary" not in text
    assert text.startswith("error[")
    assert main(["run", "shared_prefix", *argv, "--json"]) == Exit.USAGE
    assert "canary" not in capsys.readouterr().out


def test_a_folder_called_like_a_bundled_workload_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "distinct").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["run", "distinct", "-q", *NOBODY]) == Exit.TARGET
    assert main(["run", "other", "-q", *NOBODY]) == Exit.USAGE
    assert "other is a directory" in capsys.readouterr().err


def test_a_name_that_no_file_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a" * 5000]) == Exit.USAGE
    text = capsys.readouterr().err
    assert "error[not_found]" in text
    assert len(text) < 1000
