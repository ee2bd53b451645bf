"""The 256 words that prompts are made of, and the pieces that a calibration measures.

Plain English words; apart from the shortest, no two begin with the same three letters, so that two
texts part within a few bytes even where a token is a single byte. A byte of a hash picks a word.
"""

from __future__ import annotations

_TEXT = """
about acid across adapt age alone amber anchor answer apple aspen bag bamboo band basket beach bed
big board brown brush bucket cactus camera car cave center cherry coffee corner cradle crow cube
dance data dawn day deal deep delta desk diary dock door each early echo edge egg elbow elder equal
error even eye face fall fast field final flower forest fresh frog fuel full garden gas ghost glass
gold good green group guard guide gull habit half hand happy hawk head hello hobby hole hot hour ice
idle image index ink inner insect iron item ivory jacket jar jelly join journey joy judge juice jump
jury kettle key kind kitchen knee knife land laser lawn layer lead life lion list lizard long
machine maple mask moss mother mountain move much mud museum nail nation near neck nest nine noble
nose number nurse oak oasis oat object old once orange order organ oval paint path peach people
pocket pond pool potato pulse purple quarter queen quick quote rabbit rail rhythm ribbon rice ring
robin rose royal rubber sand sauce second silver six small solar song space square table tail
texture toast today tower toy tulip twelve type umbrella uncle under unit upper urban useful valley
van vein velvet vessel vine violin visit volcano vote wagon water wave weather west wide wise wolf
wood word yard year yellow young zebra zero zone zoo a i an at by do go he if in is it me my no of
on or so to up us we
"""


def _turns(words: list[str]) -> tuple[str, ...]:
    """The words in an order in which each first letter comes at equal distances."""
    columns: dict[str, list[str]] = {}
    for word in words:
        columns.setdefault(word[0], []).append(word)
    places = [
        ((row + 0.5) / len(column), word) for column in columns.values() for row, word in enumerate(column)
    ]
    return tuple(word for _, word in sorted(places))


_WORDS = _TEXT.split()

WORDS: tuple[str, ...] = tuple(f" {word}" for word in _WORDS)
"""Each with its leading space, as it stands inside a text."""

HEADS: tuple[str, ...] = _turns([*_WORDS, *(word.capitalize() for word in _WORDS)])
"""First words of a text, without a space; neighbours differ in their first byte."""

NEWLINE = "\n"

NUMBERS: tuple[str, ...] = ("7", "26", "417", "2026", " 7", " 26", " 417", " 2026")
"""Digits as they stand in times and counts, for their lengths: some tokenizers take each digit by
itself, others up to three at once, some the space before them by itself."""
