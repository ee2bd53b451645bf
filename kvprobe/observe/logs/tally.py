"""What was read, in numbers, and in sentences where something could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST_NOTES = 50


@dataclass(slots=True)
class Tally:
    """Counts of one source. `skipped_lines` were cut, left out or could not be read in full. `stopped` is the
    signal that ended the reading."""

    bytes: int = 0
    lines: int = 0
    cut_lines: int = 0
    nul_bytes: int = 0
    bad_utf8: int = 0
    sampled_lines: int = 0
    skipped_lines: int = 0
    notes: list[str] = field(default_factory=list)
    stopped: KeyboardInterrupt | None = None

    def note(self, text: str) -> None:
        """One sentence for the reader of the diagnosis; the same one only once."""
        if text not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(text)

    def conclude(self) -> None:
        """Say in words what the counts mean."""
        if self.cut_lines:
            self.note(f"{self.cut_lines:,} lines longer than 64 KiB were cut there")
        if self.nul_bytes:
            self.note(f"{self.nul_bytes:,} NUL bytes were left out")
        if self.bad_utf8:
            self.note(f"{self.bad_utf8:,} bytes were no valid UTF-8 and were replaced")
        if self.sampled_lines:
            self.note(f"of lines that repeat thousands of times, {self.sampled_lines:,} were passed over")
