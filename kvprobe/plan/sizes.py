"""Sizes as people and engines write them: `14GiB`, `80GB`, `5.29 GiB`, `123456B`.

A unit is always wanted: a bare number would be a guess between GiB, GB and MiB. Decimals are taken as a
rounding, for such numbers are copied from a log: 5.29 GiB stands for every amount that may print as 5.29.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.pool import ByteRange

_UNITS = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_BY_NAME = {**{name.lower(): name for name in _UNITS}, "bytes": "B", "byte": "B"}
_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,12}))?[ _]?([A-Za-z]{0,6})")
MAX_BYTES = 2**60
_HALF_STEP = Fraction(51, 100)
"""Of the last decimal, to either side: half a step, for a tie may have been rounded either way, and a little
more, for engines round figures that were floats, and logs round what was rounded."""
GIB = 2**30


def parse_size(text: str, option: str) -> ByteRange:
    """A size with a unit. Without decimals it is exact, with decimals a rounding to the last of them.

    Raises UsageError that names `option` and says what to write.
    """
    value, step, unit = _parts(text, option)
    if not step or unit == "B":
        return ByteRange.of(_whole(value * _UNITS[unit], text, option))
    lo = max(0, math.ceil((value - _HALF_STEP * step) * _UNITS[unit]))
    hi = math.floor((value + _HALF_STEP * step) * _UNITS[unit])
    _whole(Fraction(hi), text, option)
    return ByteRange(lo, hi)


def parse_exact(text: str, option: str) -> ByteRange:
    """The same for amounts that are decided, not read from a log: 1.5GiB is 1,610,612,736 bytes."""
    value, _, unit = _parts(text, option)
    return ByteRange.of(_whole(value * _UNITS[unit], text, option))


def is_decimal_unit(text: str) -> bool:
    """Was the size given in powers of ten (80GB)?"""
    found = _SIZE.fullmatch(text.strip())
    return found is not None and _BY_NAME.get(found[3].lower(), "") in ("KB", "MB", "GB", "TB")


def has_unit(text: str) -> bool:
    """Is it a number with a unit of size (and not a name such as `4090` or `6000 ada`)?"""
    found = _SIZE.fullmatch(text.strip())
    return found is not None and found[3].lower() in _BY_NAME


def is_size(text: str) -> bool:
    """Does it look like a size, be it without a unit or with a wrong one?"""
    return _SIZE.fullmatch(text.strip()) is not None


def _parts(text: str, option: str) -> tuple[Fraction, Fraction, str]:
    """Value, the step of its last decimal (0 without decimals), unit."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise _bad(option, f"`{text}` is no size", "write a number and a unit, such as 14GiB")
    whole, decimals, unit = found[1], found[2] or "", found[3]
    name = _BY_NAME.get(unit.lower())
    if name is None:
        wrong = f"`{text}` has no unit" if not unit else f"`{unit}` is no unit of size"
        number = f"{whole}{'.' + decimals if decimals else ''}"
        raise _bad(
            option,
            wrong,
            f"write {number}GiB (2^30 bytes, what nvidia-smi and engine logs mean) or {number}GB (10^9)",
        )
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    return value, Fraction(1, 10 ** len(decimals)) if decimals else Fraction(0), name


def _whole(size: Fraction, text: str, option: str) -> int:
    if size > MAX_BYTES:
        raise _bad(option, f"`{text}` is more memory than there is", "check the unit")
    return math.floor(size)


def _bad(option: str, why: str, fix: str) -> UsageError:
    return UsageError(Problem("bad_size", f"{option}: {why}", fix))
