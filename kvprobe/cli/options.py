"""The argument parser: argparse with errors that are `Problem`s, and the options all commands share."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from kvprobe.errors import Problem, UsageError

_UNRECOGNISED = re.compile(r"^unrecognized arguments: (\S+)")
_NO_VALUE = re.compile(r"^argument (--\S+): expected one argument$")
_CHOICE = re.compile(r"^argument (\S+): invalid choice: '?([^' ]*)'? \(choose from (.*)\)$")


class Parser(argparse.ArgumentParser):
    """argparse that raises `UsageError` with a fix instead of printing and exiting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(self._problem(message))

    def _problem(self, message: str) -> Problem:
        help_fix = f"see `{self.prog} --help`"
        if found := _UNRECOGNISED.match(message):
            option = found.group(1).split("=")[0]
            known = [o for action in self._all_actions() for o in action.option_strings]
            return Problem(
                "unknown_option",
                f"`{option}` is no option of `{self.prog}`",
                meant(option, known) or help_fix,
            )
        if found := _CHOICE.match(message):
            offered = re.findall(r"[\w.-]+", found.group(3))
            return Problem(
                "bad_value",
                f"`{found.group(2)}` is no {found.group(1)}: choose from {', '.join(offered)}",
                meant(found.group(2), offered) or help_fix,
            )
        if found := _NO_VALUE.match(message):
            option = found.group(1).split("/")[-1]
            return Problem("usage", message, f"a value that begins with `-` needs `=`: {option}='VALUE'")
        return Problem("usage", message, help_fix)

    def _all_actions(self) -> list[argparse.Action]:
        """Own options, and those of the commands below: argparse reports leftovers at the top."""
        actions = list(self._actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for child in set(action.choices.values()):
                    actions.extend(child._actions)
        return actions


def meant(word: str, known: Iterable[str]) -> str | None:
    """A question after a word that nobody knows: the nearest one that is known; null when none is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that every command takes."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON document on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    group.add_argument(
        "-v", "--verbose", action="store_true", help="more detail on stderr, tracebacks of defects"
    )
    group.add_argument("--no-color", action="store_true", help="no colours (NO_COLOR is obeyed too)")


def from_environment(
    args: argparse.Namespace,
    values: Sequence[str],
    flags: Sequence[str] = (),
    exclusive: Sequence[str] = (),
) -> dict[str, str]:
    """Fill options that were not given from `KVPROBE_<OPTION>`, and say which variable filled which.

    Options beat the environment: of the `exclusive` ones, one that was given hides the variables of
    the others. An empty variable counts as not set. Raises `UsageError` naming the variable.
    """
    chosen = any(getattr(args, dest) is not None for dest in exclusive)
    origins: dict[str, str] = {}
    for dest in (*values, *flags):
        variable = f"KVPROBE_{dest.upper()}"
        text = os.environ.get(variable)
        given = getattr(args, dest) not in (None, False)
        if not text or given or (chosen and dest in exclusive):
            continue
        setattr(args, dest, _truth(variable, text) if dest in flags else text)
        origins[dest] = variable
    both = [origins[dest] for dest in exclusive if dest in origins]
    if len(both) > 1:
        raise UsageError(
            Problem("conflict", f"{' and '.join(both)} are both set and exclude each other", "unset one")
        )
    return origins


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _truth(variable: str, text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        message = f"environment variable {variable}: `{text}` is neither true nor false"
        raise UsageError(Problem("bad_value", message, f"set it to 1 or 0, or unset {variable}"))
    return text.lower() in _TRUE
