"""The known formats: by which columns they are told, and what a row of each says.

| format | columns | time | block |
| --- | --- | --- | --- |
| azure (2023 and 2024) | TIMESTAMP, ContextTokens, GeneratedTokens | date and time | - |
| burstgpt | Timestamp, Request tokens, Response tokens, (Session ID) | s | - |
| vidur | arrived_at, num_prefill_tokens, num_decode_tokens | s | - |
| mooncake | timestamp, input_length, output_length, hash_ids | ms | 512 |
| qwen | chat_id, parent_chat_id, timestamp, input_length, output_length, turn, hash_ids | s | 16 |
| kvprobe | t, in, out, (hash_ids, block, session, turn) | s | as written |

Sources: Azure Public Dataset (LLM inference traces 2023, 2024), BurstGPT, vidur, Mooncake (FAST25 traces),
Qwen-Bailian usage traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvprobe.traces.fields import BadCell, count, seconds, shown, stamp
from kvprobe.traces.rows import MAX_BLOCK_TOKENS

Row = Mapping[str, Any]
MAX_NAME_CHARS = 200
_MAX_HASH_ID = (1 << 63) - 1
_MOONCAKE_BLOCK = 512
_QWEN_BLOCK = 16


@dataclass(frozen=True, slots=True)
class RawRow:
    """What a row says, before the file's order gives it its place: times as written."""

    at_s: float
    in_tokens: int
    out_tokens: int
    hash_ids: tuple[int, ...] | None = None
    block_tokens: int | None = None
    session: str | None = None
    turn: int | None = None
    chat: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """`needs` are the columns that tell it; `parse` takes (row, whether more than lengths is wanted)."""

    name: str
    csv: bool
    needs: tuple[str, ...]
    parse: Callable[[Row, bool], RawRow]
    unless: str = ""
    """A column that tells another format."""

    def fits(self, columns: Row | frozenset[str]) -> bool:
        """Whether a file or row with these columns can be of this format."""
        told = all(name in columns for name in self.needs)
        return told and not (self.unless and self.unless in columns)


def _sizes(row: Row, prompt: str, answer: str) -> tuple[int, int]:
    return count(row.get(prompt), prompt), count(row.get(answer), answer)


def _azure(row: Row, full: bool) -> RawRow:
    at_s = stamp(row.get("TIMESTAMP"), "TIMESTAMP") if full else 0.0
    return RawRow(at_s, *_sizes(row, "ContextTokens", "GeneratedTokens"))


def _burstgpt(row: Row, full: bool) -> RawRow:
    at_s = seconds(row.get("Timestamp"), "Timestamp") if full else 0.0
    session = _name(row.get("Session ID"), "Session ID")
    return RawRow(at_s, *_sizes(row, "Request tokens", "Response tokens"), session=session)


def _vidur(row: Row, full: bool) -> RawRow:
    at_s = seconds(row.get("arrived_at"), "arrived_at") if full else 0.0
    return RawRow(at_s, *_sizes(row, "num_prefill_tokens", "num_decode_tokens"))


def _mooncake(row: Row, full: bool) -> RawRow:
    at_s = seconds(row.get("timestamp"), "timestamp", 0.001) if full else 0.0
    prompt, answer = _sizes(row, "input_length", "output_length")
    return RawRow(at_s, prompt, answer, *_blocks(row, prompt, _MOONCAKE_BLOCK if full else None))


def _qwen(row: Row, full: bool) -> RawRow:
    at_s = seconds(row.get("timestamp"), "timestamp") if full else 0.0
    prompt, answer = _sizes(row, "input_length", "output_length")
    chat, parent = _name(row.get("chat_id"), "chat_id"), _name(row.get("parent_chat_id"), "parent_chat_id")
    if chat is None:
        raise BadCell("has no `chat_id`")
    # Chats without a parent are written with the parent -1.
    parent = None if parent == "-1" else parent
    turn = None if row.get("turn") is None else _turn(row["turn"])
    blocks = _blocks(row, prompt, _QWEN_BLOCK if full else None)
    return RawRow(at_s, prompt, answer, *blocks, turn=turn, chat=chat, parent=parent)


def _kvprobe(row: Row, full: bool) -> RawRow:
    at_s = seconds(row.get("t"), "t") if full else 0.0
    prompt, answer = _sizes(row, "in", "out")
    block = None
    if row.get("hash_ids") is not None:
        if row.get("block") is None:
            raise BadCell("has `hash_ids` and no `block` (tokens of a block)")
        block = count(row["block"], "block", MAX_BLOCK_TOKENS)
        if block == 0:
            raise BadCell("has a `block` of no tokens")
    session = _name(row.get("session"), "session")
    turn = None if row.get("turn") is None else _turn(row["turn"])
    if turn is not None and session is None:
        raise BadCell("has a `turn` and no `session`")
    return RawRow(
        at_s, prompt, answer, *_blocks(row, prompt, block if full else None), session=session, turn=turn
    )


def _turn(value: Any) -> int:
    turn = count(value, "turn", 1 << 31)
    if turn < 1:
        raise BadCell("has a `turn` of 0; turns count from 1")
    return turn


def _blocks(row: Row, prompt_tokens: int, block: int | None) -> tuple[tuple[int, ...] | None, int | None]:
    """The hash ids, checked against the length: one id a block, the last one perhaps not full."""
    ids = row.get("hash_ids")
    if ids is None or block is None:
        return None, None
    if not isinstance(ids, list) or not all(type(n) is int and 0 <= n <= _MAX_HASH_ID for n in ids):
        raise BadCell("has `hash_ids` that are no list of whole numbers of 0 or more")
    full, rest = divmod(prompt_tokens, block)
    if len(ids) not in {full, full + (rest > 0)}:
        wanted = full + (rest > 0)
        raise BadCell(
            f"has {len(ids):,} hash ids where {prompt_tokens:,} tokens make {wanted:,} blocks of {block}"
        )
    return tuple(ids), block


def _name(value: Any, column: str) -> str | None:
    """A name as text; null where the cell is empty."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadCell(f"has {shown(value)} for `{column}`, which is no name")
    text = str(value)
    if len(text) > MAX_NAME_CHARS:
        raise BadCell(f"has a `{column}` of more than {MAX_NAME_CHARS} characters")
    return text


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("azure", True, ("ContextTokens", "GeneratedTokens"), _azure),
        Format("burstgpt", True, ("Request tokens", "Response tokens"), _burstgpt),
        Format("vidur", True, ("num_prefill_tokens", "num_decode_tokens"), _vidur),
        Format("kvprobe", False, ("in", "out"), _kvprobe),
        Format("qwen", False, ("chat_id", "input_length", "output_length"), _qwen),
        Format("mooncake", False, ("input_length", "output_length"), _mooncake, unless="chat_id"),
    )
}
KNOWN = "Azure, BurstGPT and vidur CSV, Mooncake and Qwen JSONL, kvprobe's own JSONL"
