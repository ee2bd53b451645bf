"""Student's t, as far as intervals of slopes need it."""

from __future__ import annotations

_NORMAL_975 = 1.959964


def student_975(freedom: int) -> float:
    """97.5 % point of Student's t by the Cornish-Fisher expansion (Abramowitz & Stegun 26.7.5).

    Within 1 % from 5 degrees of freedom on, four digits from 10 on.
    """
    z = _NORMAL_975
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third
