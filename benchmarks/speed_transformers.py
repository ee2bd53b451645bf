"""transformers' continuous batching as a line server: one JSON line in, one out.

A child process of server_speed.py. argv: model directory, threads. Prints `ready`; then for each line
{"prompts": [[ids]], "tokens": n} generates all at once and prints {"seconds": s, "tokens": n}. There
is no HTTP in its way, which favours it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

NUM_BLOCKS = 64
"""Of 256 tokens each: ample for 32 requests of 129 tokens."""
MOST_TOKENS = 512
"""In a step, as in the others."""


def main() -> None:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig

    # Typed as Any: the package leaves its constructor untyped.
    make_settings: Any = transformers.GenerationConfig
    directory, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.eval()
    # Left to itself it takes most of the machine's memory for its cache and is slow with it.
    memory = ContinuousBatchingConfig(num_blocks=NUM_BLOCKS, max_batch_tokens=MOST_TOKENS)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        settings = make_settings(
            max_new_tokens=asked["tokens"],
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
            use_cuda_graph=False,
        )
        started = time.perf_counter()
        results = model.generate_batch(
            inputs=asked["prompts"],
            generation_config=settings,
            continuous_batching_config=memory,
            persistent_manager=True,
            progress_bar=False,
        )
        seconds = time.perf_counter() - started
        count = sum(len(result.generated_tokens) for result in results.values())
        print(json.dumps({"seconds": seconds, "tokens": count}), flush=True)


if __name__ == "__main__":
    main()
