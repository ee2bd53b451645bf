"""The tokenizer of a real model: `tokenizer.json` and what stands beside it.

Generated text leaves token by token, so the bytes of each token are wanted, not its text: a
character may be spread over several tokens. Two ways of writing bytes into a vocabulary are known.
Byte-level BPE writes each byte as a printable character (the table is that of GPT-2's published
encoder). The other writes text with U+2581 for a space, and bytes as `<0x0A>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from reference_server.errors import ConfigError
from reference_server.models.chat_template import ChatTemplate
from reference_server.models.fields import MOST_JSON_BYTES, Fields, read_fields, read_json_object
from reference_server.models.tokenizer import ChatError

SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TextTokenizer:
    """`tokenizer.json`, the chat template, and the tokens that end a text."""

    hides_eos = False

    def __init__(self, directory: Path, vocabulary_size: int) -> None:
        """`vocabulary_size` is the model's, which may be padded beyond the tokenizer's."""
        raw = read_json_object(directory / "tokenizer.json")
        try:
            self._fast = FastTokenizer.from_file(str(directory / "tokenizer.json"))
        except Exception as error:  # the package raises plain Exception
            raise ConfigError(f"{directory / 'tokenizer.json'} is no tokenizer: {error}") from error
        self._fast.no_truncation()
        self._fast.no_padding()
        self.vocabulary_size = vocabulary_size
        if self._fast.get_vocab_size() > vocabulary_size:
            raise ConfigError(
                f"{directory}: the tokenizer has {self._fast.get_vocab_size()} tokens, "
                f"the model {vocabulary_size}"
            )
        self._bytes = _bytes_of_tokens(self._fast, raw, vocabulary_size, str(directory))
        settings = _optional(directory / "tokenizer_config.json")
        self._template = _template(directory, settings)
        self.eos_tokens = self._end_tokens(directory, settings)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._fast.encode(_clean(text), add_special_tokens=add_special_tokens).ids
        return ids

    def encode_chat(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool) -> list[int]:
        if self._template is None:
            raise ChatError("this model has no chat template; use /v1/completions")
        text = self._template.render(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._fast.decode(list(tokens), skip_special_tokens=False)
        return text

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def sampleable(self) -> list[int] | None:
        return None

    def _end_tokens(self, directory: Path, settings: Fields) -> frozenset[int]:
        """Those of generation_config.json and config.json, and the tokenizer's own end of sequence."""
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            fields = _optional(directory / name)
            value = fields.raw.get("eos_token_id")
            values = value if isinstance(value, list) else [] if value is None else [value]
            for item in values:
                if (
                    isinstance(item, bool)
                    or not isinstance(item, int)
                    or not 0 <= item < self.vocabulary_size
                ):
                    raise fields.error(f"eos_token_id {item!r:.80} is no token")
                found.add(item)
            if found:
                break  # generation_config.json says it where both do
        own = self._fast.token_to_id(_special(settings, "eos_token") or "")
        return frozenset(found | ({own} if own is not None else set()))


def _optional(path: Path) -> Fields:
    return read_fields(path) if path.is_file() else Fields({}, str(path))


def _special(settings: Fields, key: str) -> str | None:
    value = settings.raw.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(directory: Path, settings: Fields) -> ChatTemplate | None:
    path = directory / "chat_template.jinja"
    source: Any = settings.raw.get("chat_template")
    if path.is_file():
        if path.stat().st_size > MOST_JSON_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_JSON_BYTES} B")
        source = path.read_text(encoding="utf-8", errors="replace")
    if isinstance(source, list):
        named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    keys = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
    special = {key: text for key in keys if (text := _special(settings, key)) is not None}
    return ChatTemplate(source, special)


def _clean(text: str) -> str:
    # JSON may carry lone surrogates, which UTF-8 has no form for.
    return text.encode("utf-8", "replace").decode()


def _bytes_of_tokens(fast: FastTokenizer, raw: dict[str, Any], count: int, source: str) -> list[bytes]:
    """UTF-8 bytes of every id; none for special tokens and for ids without a token."""
    kinds = _decoder_kinds(raw.get("decoder"))
    if "ByteLevel" in kinds:
        table = {character: value for value, character in _byte_characters().items()}
        convert = table.get
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        convert = None
    else:
        raise ConfigError(
            f"{source}: a tokenizer with decoder {'/'.join(sorted(kinds)) or 'none'} is not served; "
            "byte-level and U+2581 vocabularies are"
        )
    added = fast.get_added_tokens_decoder()
    found = [b""] * count
    for piece, token in fast.get_vocab(with_added_tokens=True).items():
        if token in added:
            found[token] = b"" if added[token].special else piece.encode()
        elif convert is not None:
            found[token] = b"".join(
                character.encode() if (value := convert(character)) is None else bytes((value,))
                for character in piece
            )
        elif byte := _BYTE_PIECE.fullmatch(piece):
            found[token] = bytes((int(byte[1], 16),))
        else:
            found[token] = piece.replace(SPACE_MARK, " ").encode()
    return found


def _decoder_kinds(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    inner = decoder.get("decoders")
    kinds = {str(decoder.get("type"))}
    if isinstance(inner, list):
        kinds |= {str(part.get("type")) for part in inner if isinstance(part, dict)}
    return kinds


def _byte_characters() -> dict[int, str]:
    """Printable characters stand for themselves; the other bytes for U+0100 and on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}
