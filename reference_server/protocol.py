"""OpenAI's request bodies, as far as they are served, and their checks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from reference_server.errors import RequestError
from reference_server.logprobs import MOST
from reference_server.models.tokenizer import ChatError, Tokenizer
from reference_server.sampler import SamplingParams

Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Stops = Stop | Annotated[list[Stop], msgspec.Meta(max_length=16)]
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(msgspec.Struct):
    """One chat message; content is text or a list of text parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields that both endpoints have; `parameters.py` has those that are refused."""

    model: str | None = None
    max_tokens: Count | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    cache_salt: Annotated[str, msgspec.Meta(max_length=1024)] | None = None

    def check(self) -> None:
        """What the types do not say."""
        if self.stream_options is None:
            return
        if not self.stream:
            raise RequestError(400, "stream_options needs stream=true", param="stream_options")
        if self.stream_options.continuous_usage_stats:
            raise RequestError(400, "continuous_usage_stats is not supported", param="stream_options")

    def checked_min_tokens(self, max_tokens: int) -> int:
        """`min_tokens`, which `max_tokens` must not contradict."""
        if self.min_tokens is not None and self.min_tokens > max_tokens:
            raise RequestError(
                400,
                f"min_tokens={self.min_tokens} is more than the {max_tokens} tokens that may be generated",
                param="min_tokens",
            )
        return self.min_tokens or 0

    def stops(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def sampling(self, default_seed: int) -> SamplingParams:
        """OpenAI's defaults: temperature 1, the whole distribution."""
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=default_seed if self.seed is None else self.seed,
        )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(GenerationRequest, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None

    def alternatives(self) -> int | None:
        """How many beside each token; None where no log probabilities are wanted."""
        if not self.logprobs:
            if self.top_logprobs:
                raise RequestError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
            return None
        return self.top_logprobs or 0

    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        tokens = encode_messages(self.messages, tokenizer, add_generation_prompt=True)
        return _not_empty(tokens, "messages")


class CompletionRequest(GenerationRequest, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[int | str]
    logprobs: Alternatives | bool | None = None
    top_logprobs: Alternatives | None = None

    def alternatives(self) -> int | None:
        """How many beside each token; None where no log probabilities are wanted."""
        if self.logprobs is True:
            raise RequestError(400, "logprobs is a number of alternatives here", param="logprobs")
        if self.top_logprobs:
            message = "top_logprobs is a parameter of chats; here logprobs is the number of alternatives"
            raise RequestError(400, message, param="top_logprobs")
        return None if self.logprobs is False else self.logprobs

    def wanted_tokens(self) -> int | None:
        """OpenAI's default for this endpoint is 16."""
        return self.max_tokens if self.max_tokens is not None else 16

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return _not_empty(tokenizer.encode(prompt), "prompt")
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return _not_empty(tokenizer.encode(prompt[0]), "prompt")
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) != len(prompt):
            raise RequestError(400, "only one prompt a request is supported", param="prompt")
        if not all(0 <= token < tokenizer.vocabulary_size for token in ids):
            raise RequestError(400, "the prompt has token ids outside the vocabulary", param="prompt")
        return _not_empty(ids, "prompt")


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /tokenize`, vLLM's form: exactly one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError(400, "give exactly one of prompt and messages", param="prompt")
        if self.messages is not None:
            return encode_messages(self.messages, tokenizer, add_generation_prompt=self.add_generation_prompt)
        return tokenizer.encode(self.prompt or "", add_special_tokens=self.add_special_tokens)


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


def _not_empty(tokens: list[int], param: str) -> list[int]:
    """Not every tokenizer puts a mark before a text, and of no token nothing can follow."""
    if not tokens:
        raise RequestError(400, "the prompt is empty", param=param)
    return tokens


def encode_messages(
    messages: list[Message], tokenizer: Tokenizer, *, add_generation_prompt: bool
) -> list[int]:
    try:
        return tokenizer.encode_chat(
            [(message.role, _text(message)) for message in messages],
            add_generation_prompt=add_generation_prompt,
        )
    except ChatError as error:
        raise RequestError(400, str(error), param="messages") from error


def _text(message: Message) -> str:
    if message.tool_calls:
        raise RequestError(400, "tool_calls in a message are not supported", param="messages")
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for part in message.content:
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise RequestError(400, "only text parts are supported in a message's content", param="messages")
        texts.append(text)
    return "\n".join(texts)


def resolve_max_tokens(
    wanted: int | None, *, num_prompt_tokens: int, max_model_len: int, capacity_tokens: int, block_size: int
) -> int:
    """How many tokens may be generated; refuses what could never be held.

    `capacity_tokens` is what the pool holds for one sequence. The last generated token is never
    stored, hence the one token more.
    """
    if num_prompt_tokens >= max_model_len:
        raise RequestError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, the prompt has "
            f"{num_prompt_tokens} input tokens, which leaves no room for output. Please shorten the prompt. "
            f"(parameter=input_tokens, value={num_prompt_tokens})",
            param="input_tokens",
            own_words=True,
        )
    room = min(max_model_len, capacity_tokens + 1) - num_prompt_tokens
    if wanted is not None and num_prompt_tokens + wanted > max_model_len:
        raise RequestError(
            400,
            f"max_tokens={wanted} is too large: the prompt has {num_prompt_tokens} tokens and the maximum "
            f"context length is {max_model_len}. (parameter=max_tokens, value={wanted})",
            param="max_tokens",
            own_words=True,
        )
    if room < 1 or (wanted is not None and wanted > room):
        raise RequestError(
            400,
            f"The request needs {num_prompt_tokens + (wanted or 1) - 1} tokens of KV cache, more than the "
            f"whole pool of {capacity_tokens} tokens ({capacity_tokens // block_size} blocks); "
            "it could never run.",
            param="max_tokens",
            own_words=True,
        )
    return room if wanted is None else wanted
