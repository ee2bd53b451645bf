"""In which order families of prompts take their turns.

The first request of a family is cold. The cold ones are spread over the round, so that they meet
the same conditions as the warm ones, and the second request of a family keeps its distance to the
first, so that it is not sent while the first is still being prefilled.
"""

from __future__ import annotations

import random
from array import array


def family_order(families: int, per_family: int, gap: int, seed: str) -> array[int]:
    """Family of each request of a round of `families` x `per_family` requests.

    Between the first and the second request of a family stand at least `gap` - 1 others, as far as
    there are others to stand there.
    """
    rng = random.Random(seed)
    total = families * per_family
    colds = list(range(families))
    rng.shuffle(colds)
    spacing = max((total - gap - per_family) / families, 1.0)
    order = array("l")
    ready: list[int] = []
    ripening: list[tuple[int, int]] = []  # (position from which it may come, family), in order
    started = ripe = 0
    while len(order) < total:
        position = len(order)
        while ripe < len(ripening) and ripening[ripe][0] <= position:
            ready.extend([ripening[ripe][1]] * (per_family - 1))
            ripe += 1
        if started < families and (position >= started * spacing or not ready):
            order.append(colds[started])
            ripening.append((position + gap, colds[started]))
            started += 1
        elif ready:
            pick = rng.randrange(len(ready))
            ready[pick], ready[-1] = ready[-1], ready[pick]
            order.append(ready.pop())
        else:
            # Nothing else is left to stand between: the round is too small for the distance.
            ripening[ripe] = (position, ripening[ripe][1])
    return order
