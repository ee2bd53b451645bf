"""Trains the small model of `tests/quality/recall`: it can copy and look up, and little else.

    python benchmarks/train_recall.py tests/quality/recall

A random model answers nothing right, so that no damage to its cache can be told from its nature; a
downloaded one is not to be had everywhere. This one has two layers of attention and learns the questions
of `kvprobe.quality.items` that can be answered from the prompt alone (needle, chain, json) in some
minutes on a CPU. A word, a digit and a mark are a token each.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kvprobe.load.words import WORDS
from kvprobe.quality import items

SPECIAL = ("<unk>", "<s>", "</s>", "<user>", "<model>")
WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 128, 3, 4, 2, 32, 256
POSITIONS = 2048
PIECES = re.compile(r"\d|[a-zA-Z]+|[^\sa-zA-Z\d]")
TEMPLATE = (
    "{% for m in messages %}{{ '<user> ' if m.role == 'user' else '<model> ' }}{{ m.content }} "
    "{% endfor %}<model>"
)


def vocabulary() -> list[str]:
    """Every piece that the built-in questions are made of."""
    seen: dict[str, None] = dict.fromkeys(SPECIAL)
    for item in items.built_in(400, 7, 40):
        for text in (item.text, item.answer):
            seen.update(dict.fromkeys(PIECES.findall(text)))
    for word in (w.strip() for w in WORDS):
        seen.setdefault(word)
    return list(seen)


def tokenizer_json(words: list[str]) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": r"\d|[a-zA-Z]+|[^\sa-zA-Z\d]"},
        "behavior": "Removed",
        "invert": True,
    }
    added = [
        {
            "id": i,
            "content": w,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, w in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"Regex": "^"}, "content": " "}, {"type": "Fuse"}],
        },
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"},
    }


def config(words: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": words,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def sample(rng: random.Random, part: float) -> items.Item:
    """Short questions first: copying is learned where there is much to copy in few tokens."""
    longest = 6 if part < 0.4 else 32 if part < 0.7 else 160
    choice = rng.random()
    if choice < 0.45:
        return items.needle_item(rng, "n", rng.randint(0, longest), rng.random())
    if choice < 0.9:
        shortest, most = (2, 8) if part < 0.4 else (4, items.CHAIN_WORDS[1])
        return items.chain_item(rng, "c", rng.randint(shortest, most))
    return items.json_item(rng, "j")


def batch(
    rng: random.Random, ids: dict[str, int], size: int, part: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, and the same shifted with all but the answer masked by -100."""
    rows, targets = [], []
    for _ in range(size):
        item = sample(rng, part)
        prompt = [ids["<user>"], *(ids[p] for p in PIECES.findall(item.text)), ids["<model>"]]
        answer = [*(ids[p] for p in PIECES.findall(item.answer)), ids["</s>"]]
        rows.append(prompt + answer)
        targets.append([-100] * (len(prompt) - 1) + answer + [-100])
    longest = max(map(len, rows))
    x = torch.zeros(size, longest, dtype=torch.long)
    y = torch.full((size, longest), -100, dtype=torch.long)
    for i, (row, target) in enumerate(zip(rows, targets, strict=True)):
        x[i, : len(row)] = torch.tensor(row)
        y[i, : len(target)] = torch.tensor(target)
    return x, y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    words = vocabulary()
    ids = {word: i for i, word in enumerate(words)}
    model = LlamaForCausalLM(LlamaConfig(**config(len(words))))
    steps, begin, rng = 0, time.monotonic(), random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, betas=(0.9, 0.98))
    limit_s = args.minutes * 60
    while (elapsed := time.monotonic() - begin) < limit_s:
        part = elapsed / limit_s
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, steps / 200) * max(0.03, 1.0 - part)
        x, y = batch(rng, ids, 32 if part < 0.7 else 12, part)
        logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if steps % 100 == 0:
            known = y != -100
            right = (logits.argmax(-1) == y)[known].float().mean().item()
            print(
                f"{elapsed:6.0f} s  step {steps}  loss {loss.item():.3f}  tokens right {right:.3f}",
                flush=True,
            )
        steps += 1
    args.folder.mkdir(parents=True, exist_ok=True)
    state = {
        k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"
    }
    save_file(state, args.folder / "model.safetensors", metadata={"format": "pt"})
    settings = {**config(len(words)), "torch_dtype": "bfloat16"}
    (args.folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (args.folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(words)) + "\n")
    card = {"eos_token": "</s>", "bos_token": None, "chat_template": TEMPLATE, "model_max_length": POSITIONS}
    (args.folder / "tokenizer_config.json").write_text(json.dumps(card, indent=1) + "\n")


if __name__ == "__main__":
    main()
