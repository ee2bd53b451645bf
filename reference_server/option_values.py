"""What an option's text may be. Each raises `ArgumentTypeError` with what is wrong. Imports nothing heavy."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

SIZE_UNITS = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]+)")


def parse_size(text: str) -> int:
    """Bytes of `256MiB`, `1.5GB`, `4096B`. A unit is required: GiB and GB are two things."""
    match = _SIZE.fullmatch(text.strip())
    factor = SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write a number and a unit, as 256MiB or 1GB")
    return int(float(match[1]) * factor)


def host(text: str) -> str:
    """An address or a name; an IPv6 address also in the brackets that a URL has."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not host:
        raise argparse.ArgumentTypeError("an address or a name is needed, as 127.0.0.1")
    return host


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
        return int(text)

    return parse


def utilisation(text: str) -> float:
    """A share, above 0 and up to 1."""
    if not re.fullmatch(r"\d?\.?\d{1,6}", text) or not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction above 0, up to 1")
    return float(text)


def seconds(text: str) -> float:
    """`600` or `2.5s`."""
    if not re.fullmatch(r"\d{1,6}(?:\.\d{1,3})?s?", text) or float(text.rstrip("s")) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return float(text.rstrip("s"))


def block_size(text: str) -> int:
    """Tokens: a power of two."""
    size = whole(1, 512)(text)
    if size & (size - 1):
        raise argparse.ArgumentTypeError(f"{size} is no power of two")
    return size
