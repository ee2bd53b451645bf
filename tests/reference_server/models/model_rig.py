"""An engine core over a model of a directory, and transformers' answer to the same prompts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reference_server.attention.formats import kv_format
from reference_server.build import build_core
from reference_server.config import ServerConfig
from reference_server.core import EngineCore
from reference_server.detokenizer import TextStream
from reference_server.metrics import Metrics
from reference_server.models.families import recipe_from_config
from reference_server.models.fields import read_json_object
from reference_server.sampler import SamplingParams, TokenChooser
from reference_server.sequence import Sequence, Timeline

TIE = 1e-3
"""Where the reference's two best logits are closer, its token is forced and the tie counted."""


@dataclass
class Reference:
    """Greedy continuations of prompts, by transformers, one at a time; and the tie at each step."""

    tokens: list[list[int]]
    gaps: list[list[float]]


def reference(model: Any, prompts: list[list[int]], max_tokens: int) -> Reference:
    found = Reference([], [])
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        found.tokens.append(out.sequences[0, len(prompt) :].tolist())
        tops = [logits[0].float().topk(2).values for logits in out.logits]
        found.gaps.append([float(top[0] - top[1]) for top in tops])
    return found


class Forced(TokenChooser):
    """Greedy, but takes the reference's token where the reference had a tie; counts what differs."""

    def __init__(self, tokens: list[int], gaps: list[float]) -> None:
        super().__init__(SamplingParams())
        self._tokens, self._gaps = tokens, gaps
        self.chosen: list[int] = []
        self.ties = 0

    @property
    def greedy(self) -> bool:
        return False

    def choose(self, logits: torch.Tensor) -> int:
        at = len(self.chosen)
        token = int(logits.argmax())
        if token != self._tokens[at] and self._gaps[at] < TIE:
            token = self._tokens[at]
            self.ties += 1
        self.chosen.append(token)
        return token


class ModelRig:
    """A core that is stepped by the test."""

    def __init__(self, directory: str, *, blocks: int = 400, block_size: int = 16, **options: Any) -> None:
        bytes_per_block = block_bytes(directory, block_size, options.get("kv_dtype", "fp32"))
        config = ServerConfig(
            **{
                "model": directory,
                "block_size": block_size,
                "kv_memory_bytes": (blocks + 1) * bytes_per_block,
                "max_model_len": 400,
                "max_num_batched_tokens": 64,
                "check_integrity": True,
                **options,
            }
        )
        self.metrics = Metrics("m", vllm_names=False)
        self.core: EngineCore = build_core(config, self.metrics)
        self.core.runner.warm_up(32)

    def run(
        self,
        prompts: list[list[int]],
        expected: Reference,
        *,
        together: bool,
        after_step: Callable[[], None] = lambda: None,
    ) -> int:
        """Compare every token; returns how many ties were forced."""
        forced = [Forced(t, g) for t, g in zip(expected.tokens, expected.gaps, strict=True)]
        for at, (prompt, chooser) in enumerate(zip(prompts, forced, strict=True)):
            self._add(at, prompt, chooser, len(expected.tokens[at]))
            if not together:
                self.drain(after_step)
        self.drain(after_step)
        for chooser, tokens in zip(forced, expected.tokens, strict=True):
            assert chooser.chosen == tokens
        return sum(chooser.ties for chooser in forced)

    def drain(self, after_step: Callable[[], None]) -> None:
        while self.core.has_work:
            self.core.step()
            after_step()

    @property
    def preemptions(self) -> float:
        labels = {"model_name": "m", "engine": "0"}
        return self.metrics.registry.get_sample_value("kvprobe:num_preemptions_total", labels) or 0.0

    def _add(self, at: int, prompt: list[int], chooser: TokenChooser, max_tokens: int) -> None:
        self.core.add(
            Sequence(
                request_id=f"r{at}-{time.monotonic_ns()}",
                tokens=list(prompt),
                num_prompt_tokens=len(prompt),
                max_tokens=max_tokens,
                chooser=chooser,
                text=TextStream(self.core.runner.tokenizer),
                chain=self.core.chain(None),
                timeline=Timeline(arrived=time.monotonic()),
            )
        )


def block_bytes(directory: str, block_size: int, kv_dtype: str) -> int:
    """Bytes of one block, from the model's shape."""
    shape = recipe_from_config(read_json_object(Path(directory) / "config.json"), "m").shape
    form = kv_format(kv_dtype)
    return block_size * form.bytes_per_token(
        layers=shape.block_layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
    )
