from __future__ import annotations

from reference_server.kv.prefix import HashChain, PrefixHasher


def test_a_chain_hashes_each_block_once() -> None:
    hasher = PrefixHasher(4)
    chain = HashChain(hasher)
    tokens = list(range(11))
    first = list(chain.grow(tokens))
    assert len(first) == 2
    assert hasher.hashed_blocks_total == 2
    chain.grow(tokens)
    assert hasher.hashed_blocks_total == 2
    tokens += [11, 12]
    assert chain.grow(tokens)[:2] == first
    assert len(chain.digests) == 3
    assert hasher.hashed_blocks_total == 3


def test_a_block_hash_covers_everything_before_it() -> None:
    hasher = PrefixHasher(2)
    one = HashChain(hasher).grow([1, 2, 3, 4])
    other = HashChain(hasher).grow([9, 2, 3, 4])
    assert one[1] != other[1]
    assert one == HashChain(hasher).grow([1, 2, 3, 4, 5])


def test_token_boundaries_cannot_be_confused() -> None:
    hasher = PrefixHasher(2)
    assert HashChain(hasher).grow([1, 256]) != HashChain(hasher).grow([257, 1])
    assert HashChain(hasher).grow([0, 1]) != HashChain(hasher).grow([1, 0])


def test_a_salt_sets_tenants_apart() -> None:
    hasher = PrefixHasher(2)
    assert HashChain(hasher, "a").grow([1, 2]) != HashChain(hasher, "b").grow([1, 2])
    assert HashChain(hasher, "a").grow([1, 2]) == HashChain(hasher, "a").grow([1, 2])
    assert HashChain(hasher, None).grow([1, 2]) != HashChain(hasher, "a").grow([1, 2])


def test_the_key_is_a_secret_of_the_engine() -> None:
    assert HashChain(PrefixHasher(2)).grow([1, 2]) != HashChain(PrefixHasher(2)).grow([1, 2])
    assert HashChain(PrefixHasher(2, b"k")).grow([1, 2]) == HashChain(PrefixHasher(2, b"k")).grow([1, 2])


def test_no_two_blocks_of_all_small_ones_collide() -> None:
    """A hash of 32 bits, or one that sums or xors, would meet itself here many times over."""
    chain = [HashChain(PrefixHasher(2, b"k")).grow([a, b])[0] for a in range(256) for b in range(256)]
    assert len(set(chain)) == 256 * 256
    assert {len(digest) for digest in chain} == {16}
