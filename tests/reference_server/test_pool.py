from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reference_server.errors import IntegrityError
from reference_server.kv.pool import NULL_BLOCK_ID, Block, BlockPool, FreeQueue


def test_free_queue_takes_from_the_middle() -> None:
    queue = FreeQueue()
    blocks = [Block(i) for i in range(4)]
    for block in blocks[1:]:
        queue.push_back(block)
    queue.push_front(blocks[0])
    queue.remove(blocks[2])
    assert [block.block_id for block in queue.blocks()] == [0, 1, 3]
    assert [queue.pop_front().block_id for _ in range(3)] == [0, 1, 3]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.pop_front()


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert NULL_BLOCK_ID not in {block.block_id for block in pool.take(4)}
    assert pool.available == 0
    with pytest.raises(IndexError):
        pool.take(1)


def test_a_chain_is_evicted_tail_before_head_and_plain_free_blocks_first() -> None:
    pool = BlockPool(5)
    chain = pool.take(3)
    for index, block in enumerate(chain):
        pool.remember(block, bytes([index]))
    (plain,) = pool.take(1)
    pool.release(reversed(chain))
    pool.release([plain])
    assert (pool.free, pool.cached, pool.used) == (1, 3, 0)
    taken = pool.take(4)
    assert taken == [plain, chain[2], chain[1], chain[0]]
    assert pool.evicted_total == 3


def test_the_least_recently_released_chain_goes_first() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.remember(first, b"first")
    pool.remember(second, b"second")
    pool.release([first])
    pool.release([second])
    pool.share(first)
    pool.release([first])
    assert pool.take(1) == [second]
    assert pool.find(b"first") is first
    assert pool.find(b"second") is None


def test_equal_blocks_are_both_kept_and_one_survives_the_others_eviction() -> None:
    pool = BlockPool(3)
    one, other = pool.take(2)
    pool.remember(one, b"same")
    pool.remember(other, b"same")
    pool.release([one])
    assert pool.find(b"same") is not None
    assert pool.take(1) == [one]
    assert pool.find(b"same") is other


def test_releasing_too_often_is_an_integrity_error() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    pool.release([block])
    with pytest.raises(IntegrityError):
        pool.release([block])


def test_the_check_sees_a_wrong_owner() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    pool.check({block.block_id: 1})
    with pytest.raises(IntegrityError):
        pool.check({})
    with pytest.raises(IntegrityError):
        pool.check({block.block_id: 2})


class PoolAgainstLists(RuleBasedStateMachine):
    """The pool beside a model made of plain lists, searched from end to end."""

    SIZE = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.SIZE)
        self.order: list[int] = list(range(1, self.SIZE))
        self.hashes: dict[int, bytes] = {}
        self.refs: dict[int, int] = {}

    @precondition(lambda self: self.order)
    @rule()
    def take(self) -> None:
        expected = self.order.pop(0)
        self.hashes.pop(expected, None)
        self.refs[expected] = 1
        assert [block.block_id for block in self.pool.take(1)] == [expected]

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), digest=st.binary(min_size=1, max_size=1))
    def remember(self, data: st.DataObject, digest: bytes) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.refs)))
        if block_id not in self.hashes:
            self.hashes[block_id] = digest
            self.pool.remember(self.pool.block(block_id), digest)

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.refs)))
        self.refs[block_id] -= 1
        if not self.refs[block_id]:
            del self.refs[block_id]
            at = len(self.order) if block_id in self.hashes else 0
            self.order.insert(at, block_id)
        self.pool.release([self.pool.block(block_id)])

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.hashes.values())))
        block = self.pool.find(digest)
        assert block is not None
        assert self.hashes[block.block_id] == digest
        self.pool.share(block)
        self.refs[block.block_id] = self.refs.get(block.block_id, 0) + 1
        if block.block_id in self.order:
            self.order.remove(block.block_id)

    @invariant()
    def same(self) -> None:
        self.pool.check(self.refs)
        assert self.pool.available == len(self.order)
        assert self.pool.cached == sum(block_id in self.hashes for block_id in self.order)
        for digest in (bytes([i]) for i in range(256)):
            assert (self.pool.find(digest) is not None) == (digest in self.hashes.values())


TestPoolAgainstLists = PoolAgainstLists.TestCase
TestPoolAgainstLists.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
