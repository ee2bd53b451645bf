"""What the target's tokenizer makes of our words, asked in a few calls.

Knows two forms of `POST /tokenize`: vLLM's (`{"model", "prompt"}` or `{"model", "messages"}` ->
`{"count", "tokens"}`), which the bundled server speaks too, and llama.cpp's (`{"content"}` ->
`{"tokens"}`, chats by way of `/apply-template`). A target without either is no error: sizes are then
assumed, and asked against got shows by how much that is off.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import httpx

from kvprobe.load.job import Calibration

log = logging.getLogger("kvprobe.load")

TIMEOUT_S = 10.0
"""Of one call; a server that sends its answer byte by byte gets no more."""
BUDGET_S = 60.0
"""Of all calls together: a tokenizer that slow is as good as none."""
MAX_ANSWER_BYTES = 8 << 20
BATCH_PIECES = 128
"""Pieces asked for in one call, each on a line of its own."""
MAX_SINGLE_CALLS = 64
SAMPLE_TEXTS = 3
SAMPLE_WORDS = 200

Messages = list[dict[str, str]]


class TokenizeError(Exception):
    """The endpoint is not there or does not answer in a form that we know."""


class _Tokenizer(Protocol):
    def text(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of plain text; with `special`, as `/v1/completions` would feed it."""

    def chat(self, messages: Messages) -> list[int]:
        """Token ids of a chat under the model's template."""


def calibrate(
    base_url: str,
    model: str,
    endpoint: str,
    api_key: str | None,
    client: httpx.Client,
    vocabulary: Sequence[str],
    *,
    history: bool = False,
) -> Calibration:
    """Measures every piece of `vocabulary` and the template of `endpoint`; with `history` also what the
    template adds around earlier turns. Never raises for the target."""
    api = _Api(base_url, api_key, client)
    for tokenizer in (_VllmForm(api, model), _LlamaForm(api)):
        try:
            return _measure(tokenizer, endpoint, vocabulary, history)
        except TokenizeError as error:
            log.info("%s: %s", type(tokenizer).__name__.strip("_"), error)
    log.warning("the target has no /tokenize: prompt sizes are assumed; compare asked with got")
    return Calibration(source="assumed", template_tokens=None, template_prefix_tokens=None)


def _measure(tokenizer: _Tokenizer, endpoint: str, vocabulary: Sequence[str], history: bool) -> Calibration:
    lines = [piece for piece in vocabulary if piece.endswith("\n") and piece.strip()]
    sizes = _piece_sizes(tokenizer, [piece for piece in vocabulary if piece not in lines])
    default = sum(sizes.values()) / len(sizes)
    check = _check(tokenizer, sizes)
    # Whole lines, each measured behind another one: their ends and starts merge with no word.
    sizes |= _after(tokenizer, "stone\n", lines) if lines else {}
    calibration = Calibration(source="tokenize", word_tokens=sizes, default_word_tokens=default)
    calibration.check_relative_error = check
    try:
        if endpoint == "chat":
            _measure_chat_template(tokenizer, calibration, history)
        else:
            special = len(tokenizer.text("river stone", special=True)) - len(tokenizer.text("river stone"))
            calibration.template_tokens = calibration.template_prefix_tokens = max(special, 0)
    except TokenizeError as error:
        log.warning("the chat template could not be measured: %s", error)
        calibration.template_tokens = calibration.template_prefix_tokens = None
        calibration.system_template_tokens = calibration.system_template_prefix_tokens = None
        calibration.turn_template_tokens = None
    return calibration


# -- pieces --------------------------------------------------------------------------------------


def _piece_sizes(tokenizer: _Tokenizer, vocabulary: Sequence[str]) -> dict[str, int]:
    """Tokens of each piece, as it stands in a text."""
    pieces = [piece for piece in vocabulary if piece.strip() and not piece.strip().isdigit()]
    sizes: dict[str, int] = {}
    for start in range(0, len(pieces), BATCH_PIECES):
        batch = pieces[start : start + BATCH_PIECES]
        counts = _by_lines(tokenizer, batch)
        if counts is None:
            sizes = _one_by_one(tokenizer, pieces)
            break
        sizes.update(zip(batch, counts, strict=True))
    # Not by lines: where digits are tokens of their own, a space before one joins the line break.
    numbers = [piece for piece in vocabulary if piece.strip().isdigit()]
    sizes |= _after(tokenizer, "stone", [piece for piece in numbers if piece.startswith(" ")])
    sizes |= _after(tokenizer, ":", [piece for piece in numbers if not piece.startswith(" ")])
    for blank in (piece for piece in vocabulary if not piece.strip()):
        sizes[blank] = _between_words(tokenizer, blank)
    return sizes


def _by_lines(tokenizer: _Tokenizer, pieces: Sequence[str]) -> list[int] | None:
    """Counts of many pieces from one call: each on its own line, cut at the line breaks' token.

    Null where the answer cannot be cut so, because breaks merge with what stands beside them.
    """
    ids = tokenizer.text("".join(f"\n{piece}" for piece in pieces) + "\n")
    places = [at for at, token in enumerate(ids) if token == ids[-1]]
    if len(places) != len(pieces) + 1:
        return None
    # Tokens before the first break are a mark that the tokenizer always sets.
    counts = [after - before - 1 for before, after in pairwise(places)]
    return counts if all(counts) else None


def _one_by_one(tokenizer: _Tokenizer, pieces: Sequence[str]) -> dict[str, int]:
    """A sample of the pieces, a call each; the others get the sample's mean by their length."""
    sample = random.Random(0).sample(list(pieces), min(MAX_SINGLE_CALLS, len(pieces)))
    known = _after(tokenizer, "stone", [piece for piece in sample if piece.startswith(" ")])
    known |= _after(tokenizer, "", [piece for piece in sample if not piece.startswith(" ")])
    per_char = sum(known.values()) / sum(len(piece) for piece in sample)
    return {piece: known.get(piece, max(round(len(piece) * per_char), 1)) for piece in pieces}


def _after(tokenizer: _Tokenizer, before: str, pieces: Sequence[str]) -> dict[str, int]:
    """Tokens that each piece adds to what stands before it, at least one."""
    alone = len(tokenizer.text(before)) if before else 0
    return {piece: max(len(tokenizer.text(before + piece)) - alone, 1) for piece in pieces}


def _between_words(tokenizer: _Tokenizer, blank: str) -> int:
    whole = len(tokenizer.text(f"stone{blank}River"))
    return max(whole - len(tokenizer.text("stone")) - len(tokenizer.text("River")), 0)


def _check(tokenizer: _Tokenizer, sizes: dict[str, int]) -> float:
    """Largest relative error of adding up pieces, on a few texts of random words."""
    rng = random.Random(1)
    heads = [piece for piece in sizes if piece.strip() and " " not in piece]
    words = [piece for piece in sizes if piece.startswith(" ")]
    worst = 0.0
    for _ in range(SAMPLE_TEXTS if heads and words else 0):
        picks = [rng.choice(heads), *rng.choices(words, k=SAMPLE_WORDS)]
        true = len(tokenizer.text("".join(picks)))
        if true:
            worst = max(worst, abs(sum(sizes[p] for p in picks) - true) / true)
    return worst


# -- the chat template ---------------------------------------------------------------------------


def _measure_chat_template(tokenizer: _Tokenizer, calibration: Calibration, history: bool) -> None:
    def user(text: str) -> Messages:
        return [{"role": "user", "content": text}]

    def both(text: str) -> Messages:
        return [{"role": "system", "content": text}, *user("Candle")]

    calibration.template_tokens, calibration.template_prefix_tokens = _overhead(tokenizer, user, "")
    try:
        measured = _overhead(tokenizer, both, "Candle")
    except TokenizeError as error:
        # Some templates refuse a system message; the runs that need one will fail and say so.
        log.warning("a system message could not be tokenised: %s", error)
        measured = calibration.template_tokens, calibration.template_prefix_tokens
    calibration.system_template_tokens, calibration.system_template_prefix_tokens = measured
    if history:
        calibration.turn_template_tokens = _turn_overhead(tokenizer, calibration.template_tokens)


def _turn_overhead(tokenizer: _Tokenizer, single: int) -> int | None:
    """Tokens beside the texts of an answer in the history and the message after it; null where the
    template takes no history."""
    one, answer, other = "river stone", "Candle", "Garden lamp"
    messages = [("user", one), ("assistant", answer), ("user", other)]
    try:
        whole = len(tokenizer.chat([{"role": role, "content": text} for role, text in messages]))
        inside = sum(len(tokenizer.text(text)) for _, text in messages)
    except TokenizeError as error:
        log.warning("a chat with history could not be tokenised: %s", error)
        return None
    return max(whole - inside - single, 0)


def _overhead(tokenizer: _Tokenizer, messages: Any, fixed: str) -> tuple[int, int]:
    """Tokens of a chat beyond its texts, and those before the first text.

    Two first texts that part at once: up to where the token rows part, all is template.
    """
    one, other = "river stone", "Garden lamp"
    row, second = tokenizer.chat(messages(one)), tokenizer.chat(messages(other))
    inside = len(tokenizer.text(one)) + (len(tokenizer.text(fixed)) if fixed else 0)
    pairs = zip(row, second, strict=False)
    prefix = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(row), len(second)))
    overhead = max(len(row) - inside, 0)
    return overhead, min(prefix, overhead)


# -- two dialects --------------------------------------------------------------------------------


class _Api:
    """POSTs JSON with a bounded answer; any failure is a TokenizeError."""

    def __init__(self, base_url: str, api_key: str | None, client: httpx.Client) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = client
        self._end = time.monotonic() + BUDGET_S

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = self._base_url + path
        deadline = min(time.monotonic() + TIMEOUT_S, self._end)
        if time.monotonic() >= deadline:
            raise TokenizeError(f"measuring takes longer than {BUDGET_S:g} s")
        try:
            with self._client.stream(
                "POST", url, json=body, headers=self._headers, timeout=TIMEOUT_S
            ) as answer:
                if answer.status_code != 200:
                    raise TokenizeError(f"{path} answers {answer.status_code}")
                data = self._read(answer, path, deadline)
            parsed = json.loads(data)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            raise TokenizeError(f"{path}: {type(error).__name__}") from error
        if not isinstance(parsed, dict):
            raise TokenizeError(f"{path} answers something that is no JSON object")
        return parsed

    def _read(self, answer: httpx.Response, path: str, deadline: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        for part in answer.iter_bytes():
            size += len(part)
            if time.monotonic() > deadline:
                raise TokenizeError(f"{path} answers too slowly")
            if size > MAX_ANSWER_BYTES:
                raise TokenizeError(f"{path} answers more than {MAX_ANSWER_BYTES} bytes")
            parts.append(part)
        return b"".join(parts)


def _ids(answer: dict[str, Any], path: str) -> list[int]:
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise TokenizeError(f"{path} answers no list of token ids")
    return tokens


class _VllmForm:
    """`{"model", "prompt" | "messages"}` -> `{"count", "tokens"}`."""

    def __init__(self, api: _Api, model: str) -> None:
        self._api = api
        self._model = model

    def text(self, text: str, *, special: bool = False) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": special}
        return _ids(self._api.post("/tokenize", body), "/tokenize")

    def chat(self, messages: Messages) -> list[int]:
        body = {"model": self._model, "messages": messages, "add_generation_prompt": True}
        return _ids(self._api.post("/tokenize", body), "/tokenize")


class _LlamaForm:
    """`{"content"}` -> `{"tokens"}`; chats by `/apply-template` -> `{"prompt"}`."""

    def __init__(self, api: _Api) -> None:
        self._api = api

    def text(self, text: str, *, special: bool = False) -> list[int]:
        body = {"content": text, "add_special": special, "parse_special": False}
        return _ids(self._api.post("/tokenize", body), "/tokenize")

    def chat(self, messages: Messages) -> list[int]:
        prompt = self._api.post("/apply-template", {"messages": messages}).get("prompt")
        if not isinstance(prompt, str):
            raise TokenizeError("/apply-template answers no prompt")
        body = {"content": prompt, "add_special": True, "parse_special": True}
        return _ids(self._api.post("/tokenize", body), "/tokenize")
