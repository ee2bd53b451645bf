"""What to write instead of a value of the wrong type; the traps of YAML are named where one is likely."""

from __future__ import annotations

import re
from typing import Any

_YES_NO = {"yes", "on", "y", "no", "off", "n"}


def type_fix(wanted: str, written: str, value: Any, *, quoted: bool) -> str:
    """`wanted` is in words; `written` is the scalar as it stands in the file, empty for a collection."""
    if wanted == "true or false" and written.lower() in _YES_NO:
        meant = "true" if written.lower() in ("yes", "on", "y") else "false"
        return f"in YAML 1.2 `{written}` is text; write {meant}"
    if wanted in ("a number", "a whole number"):
        return _number_fix(wanted, written, value, quoted=quoted)
    if wanted == "text" and written:
        return f'put it in quotes: "{written}"'
    return f"write {wanted}"


def _number_fix(wanted: str, written: str, value: Any, *, quoted: bool) -> str:
    if quoted and re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", written):
        return f"remove the quotes: {written}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write it without a point or exponent: {int(value)}"
    if re.fullmatch(r"[0-9]{1,9}(:[0-5][0-9]){1,2}", written):
        return f"in YAML 1.2 `{written}` is text, not a number in base 60; write {wanted}"
    if re.fullmatch(r"[0-9]{1,3}([_,][0-9]{3})+", written):
        return f"write it without separators: {re.sub('[_,]', '', written)}"
    if re.fullmatch(r"[0-9.]+ ?[a-zA-Z/]+", written):
        return "write the number alone, without a unit"
    return f"write {wanted}"
