"""What is known of the engine beside a request log: from a metrics page, from a tokenizer on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvprobe.errors import Problem, UsageError
from kvprobe.observe.dialects import Page
from kvprobe.prefixes.ceilings import Conditions

MAX_TOKENIZER_BYTES = 256 << 20


def of_page(known: Conditions, page: Page, given: Sequence[str]) -> Conditions:
    """Block and pool as the page's cache configuration states them; what was `given` as an option stays."""
    config = page.cache_config or {}
    size, blocks = (_number(config.get(name)) for name in ("block_size", "num_gpu_blocks"))
    return Conditions(
        block_tokens=known.block_tokens if "--block-size" in given else size,
        pool_tokens=known.pool_tokens if "--pool-tokens" in given or not (size and blocks) else size * blocks,
        replicas=known.replicas,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and int(text) > 0 else None


def tokenizer_of(path: str | None) -> Callable[[str], int] | None:
    """A counter from `tokenizer.json` beside the model that --model names; null where there is none."""
    if path is None:
        return None
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    if file.stat().st_size > MAX_TOKENIZER_BYTES:
        raise UsageError(Problem("too_large", "the tokenizer is far too large", "name another", str(file)))
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions for a file that is none
        raise UsageError(
            Problem("bad_tokenizer", f"no tokenizer: {error}", "name another", str(file))
        ) from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
