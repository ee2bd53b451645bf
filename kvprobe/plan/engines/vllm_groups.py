"""vLLM V1: layers cut into groups that share one pool of equal blocks.

A block belongs to one group at a time and covers all its layers, so every group must need the same bytes
for a block: pages are made equal (`unify`), each kind of layer is cut into groups of one size, and the last
group of a kind is padded. Read in `get_kv_cache_groups` and what it calls, wheels 0.8.0 to 0.33.0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from kvprobe.plan.engines.arithmetic import ceil_div
from kvprobe.plan.engines.versions import Version, has
from kvprobe.plan.engines.vllm_specs import KINDS, CacheSpec, Rules, promoted


@dataclass(frozen=True, slots=True)
class Member:
    """A layer in a group: its spec and its pipeline stage."""

    spec: CacheSpec
    stage: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Blocks of requests: how many groups there are of each set of specs. Built once, asked often."""

    groups: tuple[tuple[frozenset[CacheSpec], int], ...]
    first: frozenset[CacheSpec]

    def blocks(self, tokens: int, rules: Rules) -> int:
        """Blocks of one request, over all groups."""
        if tokens <= 0:
            return 0
        return sum(count * self._group_blocks(specs, tokens, rules) for specs, count in self.groups)

    def first_group_blocks(self, tokens: int, rules: Rules) -> int:
        return self._group_blocks(self.first, tokens, rules) if tokens > 0 and self.first else 0

    @staticmethod
    def _group_blocks(specs: frozenset[CacheSpec], tokens: int, rules: Rules) -> int:
        return max(rules.blocks(spec, tokens) for spec in specs)


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups of a model. `uniform`: one group whose layers may differ in size, none of them padded."""

    groups: tuple[tuple[Member, ...], ...]
    per_kind: tuple[int, ...]
    size: int
    padding: int
    uniform: bool
    refused: str | None = None

    def block_bytes(self, stage: int) -> int:
        """Bytes of one block on one stage: the largest group there."""
        return max(
            (
                sum(member.spec.page_bytes for member in group if member.stage == stage)
                for group in self.groups
            ),
            default=0,
        )

    def demand(self) -> Demand:
        """What requests take of these groups."""
        kinds = [frozenset(member.spec for member in group) for group in self.groups]
        return Demand(tuple(Counter(kinds).items()), kinds[0] if kinds else frozenset())

    @property
    def page_bytes(self) -> int | None:
        """Bytes of a block in one layer, where all layers have the same."""
        pages = {member.spec.page_bytes for group in self.groups for member in group}
        return pages.pop() if len(pages) == 1 else None

    @property
    def smallest_block(self) -> int:
        return min(member.spec.block_size for group in self.groups for member in group)


def group(stages: tuple[tuple[CacheSpec, ...], ...], version: Version, *, hybrid: bool) -> Grouping:
    """The groups of all stages together; `hybrid` false allocates local layers as full ones."""
    members = [Member(spec, stage) for stage, specs in enumerate(stages) for spec in specs]
    if not hybrid and any(member.spec.kind == "full" for member in members):
        members = [replace(member, spec=promoted(member.spec)) for member in members]
    if not members:
        return Grouping((), (), 0, 0, True)
    if _one_type([member.spec for member in members]):
        sizes = {member.spec.page_bytes for member in members}
        refused = _refusal(len(sizes) > 1 and not has(version, "uniform_type"))
        return Grouping((tuple(members),), (1,), len(members), 0, True, refused)
    members, refused = _unify(members, version)
    return _cut(members, version, refused)


def _refusal(wrong: bool) -> str | None:
    if not wrong:
        return None
    return "this vLLM cannot give layers of such different sizes one pool; it stops at start"


def _one_type(specs: list[CacheSpec]) -> bool:
    """Do all layers always need the same number of blocks? (`UniformTypeKVCacheSpecs`)"""
    first = specs[0]
    if any(spec.kind != first.kind or spec.block_size != first.block_size for spec in specs):
        return False
    if first.kind == "state":
        return all(spec.page_bytes == first.page_bytes for spec in specs)
    return all(spec.window_tokens == first.window_tokens for spec in specs)


def _unify(members: list[Member], version: Version) -> tuple[list[Member], str | None]:
    """Make all pages the size of the largest: larger blocks where it divides, padding where it does not."""
    page = max(member.spec.page_bytes for member in members)
    refused = False
    unified = []
    for member in members:
        spec = member.spec
        if spec.page_bytes != page:
            grows = spec.kind != "state" and page % spec.page_bytes == 0
            refused |= not has(version, "unify_pages")
            refused |= not grows and (spec.latent or not has(version, "pad_pages"))
            times = page // spec.page_bytes if grows else 1
            spec = replace(spec, block_size=spec.block_size * times, page_bytes=page)
        unified.append(replace(member, spec=spec))
    return unified, _refusal(refused)


def _cut(members: list[Member], version: Version, refused: str | None) -> Grouping:
    kinds: dict[CacheSpec, list[Member]] = {}
    for member in members:
        kinds.setdefault(member.spec, []).append(member)
    size = _group_size([len(layers) for layers in kinds.values()], version)
    groups: list[tuple[Member, ...]] = []
    per_kind = {}
    padding = 0
    for spec, layers in kinds.items():
        count = ceil_div(len(layers), size)
        per_kind[spec] = count
        padding += count * size - len(layers)
        # Every count-th layer: so each pipeline stage gets its share of each group.
        groups += [tuple(layers[first::count]) for first in range(count)]
    ordered = sorted(per_kind, key=lambda spec: KINDS.index(spec.kind))
    return Grouping(tuple(groups), tuple(per_kind[spec] for spec in ordered), size, padding, False, refused)


def _group_size(counts: list[int], version: Version) -> int:
    """Layers of a group: the rarest kind's, or the commonest's where that pads little."""
    least, most = min(counts), max(counts)
    if has(version, "group_by_max_3_2") and 2 * most < 3 * least:
        return most
    if has(version, "group_by_max_5_4") and 4 * most < 5 * least:
        return most
    return least
