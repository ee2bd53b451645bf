"""An engine core over a model's directory, held against transformers' `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """Greedy continuations of prompts by transformers, one at a time, and the logits of each step."""

    tokens: list[list[int]] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


def reference(model: Any, prompts: list[list[int]], max_tokens: int) -> Reference:
    """`model` is of transformers; nothing ends a text before `max_tokens`."""
    found = Reference()
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        found.tokens.append(out.sequences[0, len(prompt) :].tolist())
        found.logits.append(torch.cat(out.logits).float())
    return found


class Compared(TokenChooser):
    """Greedy, held against a reference.

    Where the reference had a tie its token is taken. `follow` takes it always, so that logits can be
    compared step by step: for caches that are not exact.
    """

    def __init__(self, tokens: list[int], logits: torch.Tensor, *, follow: bool = False) -> None:
        super().__init__(SamplingParams())
        self._tokens, self._logits, self._follow = tokens, logits, follow
        self.chosen: list[int] = []
        self.ties = self.agreed = 0
        self.errors: list[float] = []

    @property
    def greedy(self) -> bool:
        return False  # so that it is asked

    def choose(self, logits: torch.Tensor) -> int:
        at = len(self.chosen)
        expected, token = self._tokens[at], int(logits.argmax())
        best = self._logits[at].topk(2).values
        self.errors.append(float((logits - self._logits[at]).abs().max()))
        self.agreed += token == expected
        if token != expected and (self._follow or float(best[0] - best[1]) < TIE):
            token = expected
            self.ties += 1
        self.chosen.append(token)
        return token


class ParityRig:
    """A core that is stepped by its user."""

    def __init__(self, directory: str, *, blocks: int = 400, block_size: int = 16, **options: Any) -> None:
        """`blocks` usable blocks of `block_size` tokens; `options` are those of the server."""
        bytes_per_block = block_bytes(directory, block_size, options.get("kv_dtype", "fp32"))
        settings = {
            "model": directory,
            "block_size": block_size,
            "kv_memory_bytes": (blocks + 1) * bytes_per_block,
            "max_model_len": 400,
            "max_num_batched_tokens": 64,
            "check_integrity": True,
            **options,
        }
        self.metrics = Metrics("m", vllm_names=False)
        self.core: EngineCore = build_core(ServerConfig(**settings), self.metrics)
        self.core.runner.warm_up(32)

    def run(
        self,
        prompts: list[list[int]],
        expected: Reference,
        *,
        together: bool,
        follow: bool = False,
        after_step: Callable[[], None] = lambda: None,
    ) -> list[Compared]:
        """Each prompt's outcome, run at once or one after the other."""
        found = [
            Compared(t, logits, follow=follow)
            for t, logits in zip(expected.tokens, expected.logits, strict=True)
        ]
        for prompt, chooser, tokens in zip(prompts, found, expected.tokens, strict=True):
            self._add(prompt, chooser, len(tokens))
            if not together:
                self._drain(after_step)
        self._drain(after_step)
        return found

    @property
    def preemptions(self) -> float:
        labels = {"model_name": "m", "engine": "0"}
        return self.metrics.registry.get_sample_value("kvprobe:num_preemptions_total", labels) or 0.0

    def _drain(self, after_step: Callable[[], None]) -> None:
        while self.core.has_work:
            self.core.step()
            after_step()

    def _add(self, prompt: list[int], chooser: TokenChooser, max_tokens: int) -> None:
        now = time.monotonic_ns()
        self.core.add(
            Sequence(
                request_id=f"r{now}",
                tokens=list(prompt),
                num_prompt_tokens=len(prompt),
                max_tokens=max_tokens,
                chooser=chooser,
                text=TextStream(self.core.runner.tokenizer),
                chain=self.core.chain(None),
                timeline=Timeline(arrived=now / 1e9),
            )
        )


def block_bytes(directory: str, block_size: int, kv_dtype: str) -> int:
    """Bytes of one block, from the model's shape."""
    shape = recipe_from_config(read_json_object(Path(directory) / "config.json"), "m").shape
    form = kv_format(kv_dtype)
    return block_size * form.bytes_per_token(
        layers=shape.block_layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
    )
