"""What of the device's memory is left for KV.

left = total x utilisation - weights - workspace - activation peak, each measured, none guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_server.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes, but for the utilisation."""

    total: int
    free_at_start: int
    utilisation: float
    weights: int
    workspace: int = 0
    activation_peak: int = 0

    @property
    def ours(self) -> int:
        """What this server may hold altogether."""
        return int(self.total * self.utilisation)

    @property
    def left_for_kv(self) -> int:
        """May be negative."""
        return self.ours - self.weights - self.workspace - self.activation_peak

    def line(self) -> str:
        """As the log tells it."""
        return (
            f"memory budget: total {self.total} B, free at start {self.free_at_start} B, "
            f"utilisation {self.utilisation:.3f} = {self.ours} B; weights {self.weights} B, "
            f"workspace {self.workspace} B, activation peak {self.activation_peak} B; "
            f"left for KV {self.left_for_kv} B ({self.left_for_kv / 1024**2:.1f} MiB)"
        )

    def refuse_nothing_left(self) -> None:
        """Raise `ConfigError` where weights and fixed buffers are all that fits, or more."""
        if self.left_for_kv > 0:
            return
        raise ConfigError(
            f"no memory is left for KV: total {self.total} B x utilisation {self.utilisation:.3f} = "
            f"{self.ours} B, weights {self.weights} B, workspace {self.workspace} B, activation peak "
            f"{self.activation_peak} B; lacking {-self.left_for_kv} B"
        )


def refuse_occupied(total: int, free: int, utilisation: float) -> None:
    """Raise `ConfigError` where others hold so much that the budget cannot be had."""
    if free < int(total * utilisation):
        raise ConfigError(
            f"free memory on the device at start is {free} B of {total} B, less than the budget of "
            f"{int(total * utilisation)} B (utilisation {utilisation:.3f})"
        )
