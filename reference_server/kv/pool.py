"""Blocks of KV memory: reference counts and the free list that is the LRU queue.

Every block is in exactly one state:

- *used*: some sequence holds it (`refcount > 0`); it is not in the queue;
- *cached*: nobody holds it, its content is still valid and findable by hash; in the queue;
- *free*: nobody holds it and it holds nothing worth keeping; in the queue.

The queue is taken from at the head. Blocks without a hash go back to the head, hashed ones to the
tail, so that taking the head evicts what was let go longest ago, and only once no plain free
block is left. Whoever lets a chain of blocks go must do it tail first: the head of a prefix is
shared by more prompts than its tail, so it has to live longer.

The queue is doubly linked, so that a hit takes a block out of its middle in O(1).

Block 0 is the null block. It is never handed out: padding reads and writes land there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reference_server.errors import IntegrityError

NULL_BLOCK_ID = 0

INDEX_ENTRY_BYTES = 232 + 64 + 49
"""Of one hash in the index: the small dict of equal blocks, its place in the large one, the digest."""


class Block:
    """One block; `prev` and `next` are queue links, None while it is in use."""

    __slots__ = ("block_id", "hash", "next", "parent", "prev", "refcount")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.refcount = 0
        self.hash: bytes | None = None
        self.parent: bytes | None = None
        """The hash of the block before it; None for the first of a prompt."""
        self.prev: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, refs={self.refcount}, hashed={self.hash is not None})"


BLOCK_RECORD_BYTES = Block(NULL_BLOCK_ID).__sizeof__() + 8
"""Of one block: the object, and the pointer to it."""


class FreeQueue:
    """A doubly linked queue of blocks between two sentinels."""

    def __init__(self) -> None:
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.prev = self._head
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push_front(self, block: Block) -> None:
        self._link(self._head, block)

    def push_back(self, block: Block) -> None:
        assert self._tail.prev is not None
        self._link(self._tail.prev, block)

    def pop_front(self) -> Block:
        block = self._head.next
        if block is None or block is self._tail:
            raise IndexError("the free queue is empty")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        assert block.prev is not None
        assert block.next is not None
        block.prev.next = block.next
        block.next.prev = block.prev
        block.prev = block.next = None
        self._size -= 1

    def blocks(self) -> list[Block]:
        """Head to tail: the order in which blocks will be taken."""
        found: list[Block] = []
        block = self._head.next
        while block is not None and block is not self._tail:
            found.append(block)
            block = block.next
        return found

    def _link(self, left: Block, block: Block) -> None:
        right = left.next
        assert right is not None
        left.next = right.prev = block
        block.prev, block.next = left, right
        self._size += 1


class BlockPool:
    """All blocks of one KV cache. Not thread-safe: the engine thread owns it."""

    def __init__(self, num_blocks: int, *, most_cached: int | None = None) -> None:
        """`num_blocks` counts the null block, so `num_blocks - 1` can be handed out.

        With `most_cached`, no more blocks than that stay cached: older ones are dropped.
        """
        if num_blocks < 2:
            raise ValueError("a pool needs the null block and at least one other")
        self._blocks = [Block(i) for i in range(num_blocks)]
        self.null_block = self._blocks[NULL_BLOCK_ID]
        self._queue = FreeQueue()
        for block in self._blocks[1:]:
            self._queue.push_back(block)
        # Equal prompts computed in one step give equal blocks. Both stay, and either may be found,
        # so that one of them can be evicted without losing the prefix.
        self._by_hash: dict[bytes, dict[int, Block]] = {}
        self.total = num_blocks - 1
        self.used = 0
        self.cached = 0
        self.evicted_total = 0
        self._most_cached = most_cached

    @property
    def free(self) -> int:
        """Blocks that hold nothing worth keeping."""
        return len(self._queue) - self.cached

    @property
    def available(self) -> int:
        """Blocks that `take` can hand out: free ones and, by eviction, cached ones."""
        return len(self._queue)

    def block(self, block_id: int) -> Block:
        return self._blocks[block_id]

    def find(self, digest: bytes) -> Block | None:
        """A block whose content has this hash, used or cached."""
        same = self._by_hash.get(digest)
        return next(iter(same.values())) if same else None

    def take(self, count: int) -> list[Block]:
        """Hand out `count` blocks with one reference each; the caller has checked `available`."""
        if count > len(self._queue):
            raise IndexError(f"{count} blocks asked for, {len(self._queue)} available")
        return [self._take_one() for _ in range(count)]

    def share(self, block: Block) -> None:
        """Add a reference to a block found by hash."""
        if block.refcount == 0:
            self._queue.remove(block)
            self.cached -= 1
            self.used += 1
        block.refcount += 1

    def remember(self, block: Block, digest: bytes, parent: bytes | None = None) -> None:
        """Make a full, computed block findable by the hash of its tokens and all before them."""
        if block.hash is not None:
            raise IntegrityError(f"block {block.block_id} already has a hash")
        block.hash, block.parent = digest, parent
        self._by_hash.setdefault(digest, {})[block.block_id] = block

    def release(self, blocks_tail_first: Iterable[Block]) -> None:
        """Drop one reference of each block, in the order of eviction wished for."""
        for block in blocks_tail_first:
            if block.refcount <= 0:
                raise IntegrityError(f"block {block.block_id} released more often than taken")
            block.refcount -= 1
            if block.refcount:
                continue
            self.used -= 1
            if block.hash is None:
                self._queue.push_front(block)
            else:
                self._queue.push_back(block)
                self.cached += 1
        if self._most_cached is not None:
            self._drop_cached(self.cached - self._most_cached)

    def _drop_cached(self, count: int) -> None:
        """Evict the `count` cached blocks that were let go longest ago."""
        if count <= 0:
            return
        for block in [block for block in self._queue.blocks() if block.hash is not None][:count]:
            self._queue.remove(block)
            self._forget(block)
            self._queue.push_front(block)
            self.cached -= 1
            self.evicted_total += 1

    @property
    def metadata_bytes(self) -> int:
        """Of the block records and the index of hashes, as CPython keeps them."""
        return len(self._blocks) * BLOCK_RECORD_BYTES + len(self._by_hash) * INDEX_ENTRY_BYTES

    def unreachable(self) -> int:
        """Cached blocks that no prompt finds now, because a block before them is gone."""
        reachable: dict[bytes, bool] = {}

        def find(digest: bytes) -> bool:
            # A chain is walked to its first block, or to one whose answer is known. No recursion:
            # a prompt may have thousands of blocks.
            path: list[bytes] = []
            at: bytes | None = digest
            while at is not None and at not in reachable:
                path.append(at)
                same = self._by_hash.get(at)
                if not same:
                    reachable[at] = False
                    break
                at = next(iter(same.values())).parent
            found = at is None or reachable[at]
            reachable.update(dict.fromkeys(path, found))
            return found

        cached = [b.hash for b in self._queue.blocks() if b.hash is not None]
        return sum(not find(digest) for digest in cached)

    def _take_one(self) -> Block:
        block = self._queue.pop_front()
        if block.hash is not None:
            self._forget(block)
            self.cached -= 1
            self.evicted_total += 1
        block.refcount = 1
        self.used += 1
        return block

    def _forget(self, block: Block) -> None:
        assert block.hash is not None
        same = self._by_hash[block.hash]
        del same[block.block_id]
        if not same:
            del self._by_hash[block.hash]
        block.hash = block.parent = None

    def check(self, owners: Mapping[int, int]) -> None:
        """Raise `IntegrityError` unless the books balance.

        `owners[block_id]` is how many sequences list that block in their tables. Walks every
        block: for tests, and for moments when the engine is idle.
        """
        if self.free + self.used + self.cached != self.total:
            raise IntegrityError(
                f"free {self.free} + used {self.used} + cached {self.cached} != {self.total}"
            )
        queued = {block.block_id for block in self._queue.blocks()}
        if len(queued) != len(self._queue):
            raise IntegrityError("the free queue lists a block twice")
        cached = 0
        for block in self._blocks[1:]:
            if block.refcount != owners.get(block.block_id, 0):
                raise IntegrityError(f"{block!r} has {owners.get(block.block_id, 0)} owners")
            if (block.block_id in queued) == (block.refcount > 0):
                raise IntegrityError(f"{block!r} is in the wrong place")
            if block.hash is not None and block.block_id not in self._by_hash.get(block.hash, {}):
                raise IntegrityError(f"{block!r} cannot be found by its hash")
            cached += block.refcount == 0 and block.hash is not None
        for digest, same in self._by_hash.items():
            if not same or any(block.hash != digest for block in same.values()):
                raise IntegrityError("the hash index points to a block that holds something else")
        if cached != self.cached:
            raise IntegrityError(f"{cached} cached blocks, counted {self.cached}")
        if NULL_BLOCK_ID in queued or NULL_BLOCK_ID in owners:
            raise IntegrityError("the null block was handed out")
