"""The hash chain by which equal prefixes are found.

The hash of a block covers its own tokens and, through its parent's hash, all tokens before it:
a block is reused only where *everything* up to its end is equal. The hash is keyed with a secret
of this process and cryptographic, so that one tenant cannot craft a prompt that collides with
another's. A `cache_salt` sets a tenant apart altogether.

The chain lives on the request and grows with it, so that a request that waits is not hashed again
at each step.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


class PrefixHasher:
    """Hashes blocks of token ids; one per engine, because the key must stay the same."""

    def __init__(self, block_size: int, key: bytes | None = None) -> None:
        self.block_size = block_size
        self._key = key if key is not None else secrets.token_bytes(32)
        self.hashed_blocks_total = 0

    def root(self, cache_salt: str | None) -> bytes:
        """The parent of a first block."""
        return blake2b((cache_salt or "").encode(), digest_size=DIGEST_BYTES, key=self._key).digest()

    def link(self, parent: bytes, tokens: Sequence[int]) -> bytes:
        """The hash of a block that follows `parent`."""
        self.hashed_blocks_total += 1
        state = blake2b(parent, digest_size=DIGEST_BYTES, key=self._key)
        state.update(array("I", tokens).tobytes())
        return state.digest()


class HashChain:
    """The hashes of a growing token list's full blocks."""

    __slots__ = ("_hasher", "_root", "digests")

    def __init__(self, hasher: PrefixHasher, cache_salt: str | None = None) -> None:
        self._hasher = hasher
        self._root = hasher.root(cache_salt)
        self.digests: list[bytes] = []

    def grow(self, tokens: Sequence[int]) -> list[bytes]:
        """Hash the full blocks of `tokens` that are new since the last call."""
        size = self._hasher.block_size
        parent = self.digests[-1] if self.digests else self._root
        for start in range(len(self.digests) * size, len(tokens) - size + 1, size):
            parent = self._hasher.link(parent, tokens[start : start + size])
            self.digests.append(parent)
        return self.digests
