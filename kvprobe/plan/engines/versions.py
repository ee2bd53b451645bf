"""What people call a version, and from which version on an engine has which habit.

A version is given as it stands in a log or in a head: `0.6.6-era`, `V1`, `0.9.x`, `0.29.1rc1`, `b4321`,
`2026-04`. A name that says nothing exact falls to the newest habits, and the plan says so. Every habit
that changed stands in `HABITS` with the first version that has it and where that was seen; the rest of
the package asks `has` and compares no versions itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Release = tuple[int, int, int]
NEWEST: Release = (9999, 0, 0)
_LAST_PATCH = 99
"""The patch that `0.9.x` stands for: the last of its series."""

_DATE = re.compile(r"(?<![0-9.])(20[0-9]{2})-([01][0-9])")
_BUILD = re.compile(r"\bb([0-9]{3,6})\b")
_RELEASE = re.compile(r"(?<![0-9a-z.])v?([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}|x))?")
_SOURCE_BUILD = re.compile(r"(?<![0-9.])0\.1\.dev[0-9]|(?<![0-9.])0\.0\.0")
"""A checkout without tags calls itself 0.1.dev20073: it may be any version."""
_GENERATION = re.compile(r"\bv([01])(?![0-9.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version as the planner understood it. `generation` is vLLM's V0 or V1 where it was said."""

    engine: str
    text: str
    release: Release = NEWEST
    build: int | None = None
    date: tuple[int, int] | None = None
    generation: int | None = None
    fork: str | None = None
    assumption: str | None = None


@dataclass(frozen=True, slots=True)
class Habit:
    """Something that an engine does from `since` on, up to (not including) `until`."""

    engine: str
    name: str
    since: Release
    until: Release | None
    what: str
    source: str


_WHEELS = "read in the published wheels on both sides of the boundary"

HABITS: tuple[Habit, ...] = (
    Habit("vllm", "v1", (0, 8, 0), None, "the V1 engine is the default", "release notes of 0.8.0"),
    Habit("vllm", "v0", (0, 0, 0), (0, 11, 0), "the V0 engine exists", _WHEELS + ": vllm/core/block"),
    Habit("vllm", "mla", (0, 7, 1), None, "MLA keeps the latent vector", "release notes of 0.7.1"),
    Habit("vllm", "groups", (0, 9, 1), None, "hybrid models are cut into groups (before: all full)", _WHEELS),
    Habit(
        "vllm",
        "concurrency_blocks",
        (0, 9, 1),
        None,
        "concurrency is counted in whole blocks of a request (before: tokens / max-model-len)",
        _WHEELS,
    ),
    Habit("vllm", "uniform_type", (0, 11, 0), None, "layers of unequal size share one group", _WHEELS),
    Habit("vllm", "global_groups", (0, 11, 0), None, "groups are made over all pipeline stages", _WHEELS),
    Habit(
        "vllm",
        "chunked_promoted",
        (0, 10, 1),
        (0, 14, 0),
        "chunked local attention is allocated as full unless an environment variable allows it",
        "default of VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE, " + _WHEELS,
    ),
    Habit("vllm", "unify_pages", (0, 12, 0), None, "smaller pages get larger blocks", _WHEELS),
    Habit(
        "vllm", "group_by_max_5_4", (0, 12, 0), (0, 18, 0), "group of the larger count below 1.25 x", _WHEELS
    ),
    Habit("vllm", "group_by_max_3_2", (0, 18, 0), None, "group of the larger count below 1.5 x", _WHEELS),
    Habit("vllm", "mla_align_64", (0, 11, 1), None, "hybrid MLA blocks are multiples of 64", _WHEELS),
    Habit("vllm", "mla_align_128", (0, 27, 0), None, "hybrid MLA blocks are multiples of 128", _WHEELS),
    Habit("vllm", "align_to_block", (0, 20, 0), None, "hybrid blocks are multiples of --block-size", _WHEELS),
    Habit("vllm", "group_check", (0, 14, 0), None, "the start check charges groups with padding", _WHEELS),
    Habit(
        "vllm",
        "pp_charges_all",
        (0, 14, 0),
        (0, 17, 0),
        "the start check charges each pipeline stage for all layers",
        "vllm issue 34076; " + _WHEELS,
    ),
    Habit(
        "vllm",
        "check_first_group",
        (0, 14, 0),
        (0, 19, 0),
        "the start check counts the blocks of the first group only",
        _WHEELS,
    ),
    Habit("vllm", "mamba_modes", (0, 15, 0), None, "mamba cache modes; speculation adds states", _WHEELS),
    Habit("vllm", "mamba_prefix_blocks", (0, 12, 0), None, "with prefix caching a state per block", _WHEELS),
    Habit("vllm", "mamba_all_default", (0, 12, 0), (0, 28, 0), "mode all where the model can", _WHEELS),
    Habit("vllm", "mamba_all_exists", (0, 12, 0), (0, 33, 0), "mamba cache mode all exists", _WHEELS),
    Habit("vllm", "mamba_all_adds_spec", (0, 22, 0), None, "mode all adds speculative states", _WHEELS),
    Habit(
        "vllm",
        "log_concurrency",
        (0, 20, 1),
        None,
        "the logged tokens are concurrency x max-model-len (before: blocks // groups x smallest block)",
        "vllm PR 40694 and 38364, issue 43308; " + _WHEELS + " 0.20.0 and 0.20.1",
    ),
    Habit("vllm", "pad_pages", (0, 24, 0), None, "pages that do not divide are padded", _WHEELS),
    Habit("vllm", "hybrid_prefix", (0, 26, 0), None, "prefix caching is on for hybrid models", _WHEELS),
    Habit(
        "vllm",
        "in_flight",
        (0, 26, 0),
        None,
        "windows reserve every batch in flight: 2 x max_num_batched_tokens with async scheduling",
        _WHEELS,
    ),
    Habit(
        "vllm", "utilization_92", (0, 20, 0), None, "gpu_memory_utilization is 0.92 (before: 0.9)", _WHEELS
    ),
    Habit("vllm", "batch_160", (0, 28, 0), None, "GPUs of 160 GiB batch 16384 tokens", _WHEELS),
    Habit("vllm", "null_check", (0, 29, 0), None, "the start check sets the null block apart", _WHEELS),
    Habit("vllm", "ds_mla", (0, 11, 0), (0, 18, 0), "fp8 of a sparse MLA model is fp8_ds_mla", _WHEELS),
    Habit(
        "sglang",
        "indexer_counted",
        (0, 5, 4),
        None,
        "the sparse indexer is part of a token's cell",
        "sglang PR 11309, " + _WHEELS,
    ),
    Habit(
        "sglang",
        "swa_bytes",
        (0, 5, 9),
        None,
        "the two pools are weighed by bytes (before: by counts of layers)",
        "sglang PR 18039, " + _WHEELS,
    ),
    Habit(
        "sglang",
        "draft_states",
        (0, 5, 8),
        None,
        "states of drafted tokens are set apart per running request (before: a share of every slot)",
        _WHEELS,
    ),
)


@dataclass(frozen=True, slots=True)
class Change:
    """A habit of llama.cpp, which counts builds: known by month, and about by build."""

    name: str
    month: tuple[int, int]
    build: int
    what: str
    source: str


CHANGES: tuple[Change, ...] = (
    Change("iswa", (2025, 5), 5434, "sliding layers have a cache of their own", "llama.cpp PR 13194"),
    Change("mla", (2025, 4), 5130, "model files keep the latent vector of MLA", "llama.cpp PR 12801"),
    Change("v_less", (2026, 2), 7830, "MLA keeps no V beside the latent vector", "llama.cpp PR 19067"),
)
"""Sliding layers are quantised like the others in all builds: PR 21277, which kept them f16, was reverted by
PR 21332 one day later (April 2026)."""

_DATES: dict[str, tuple[tuple[tuple[int, int], Release], ...]] = {
    # The newest release that was out at the end of each month, by the files' dates in the wheels.
    "vllm": (
        ((2024, 12), (0, 6, 6)),
        ((2025, 1), (0, 7, 0)),
        ((2025, 2), (0, 7, 3)),
        ((2025, 3), (0, 8, 2)),
        ((2025, 4), (0, 8, 5)),
        ((2025, 5), (0, 9, 0)),
        ((2025, 6), (0, 9, 1)),
        ((2025, 7), (0, 10, 0)),
        ((2025, 8), (0, 10, 1)),
        ((2025, 9), (0, 10, 2)),
        ((2025, 10), (0, 11, 0)),
        ((2025, 11), (0, 11, 2)),
        ((2025, 12), (0, 13, 0)),
        ((2026, 1), (0, 15, 0)),
        ((2026, 2), (0, 16, 0)),
        ((2026, 3), (0, 18, 1)),
        ((2026, 4), (0, 20, 0)),
        ((2026, 5), (0, 22, 0)),
        ((2026, 6), (0, 24, 0)),
        ((2026, 7), (0, 26, 0)),
        ((2026, 8), (0, 28, 0)),
        ((2026, 9), (0, 30, 0)),
        ((2026, 10), (0, 32, 0)),
    ),
    "sglang": (
        ((2025, 4), (0, 4, 6)),
        ((2025, 9), (0, 5, 3)),
        ((2025, 10), (0, 5, 4)),
        ((2025, 11), (0, 5, 5)),
        ((2025, 12), (0, 5, 6)),
        ((2026, 1), (0, 5, 8)),
        ((2026, 2), (0, 5, 9)),
    ),
}


def parse_version(engine: str, text: str | None) -> Version:
    """What `text` says of the engine's version; the newest where it says nothing exact."""
    if text is None or not text.strip():
        return Version(
            engine=engine, text="newest", assumption=f"the newest {engine}, as no --engine-version was given"
        )
    fork = "ik_llama" if "ik_llama" in text.lower() else None
    generation = _GENERATION.search(text)
    said = int(generation[1]) if generation else None
    found = _BUILD.search(text)
    build = int(found[1]) if found and engine == "llama.cpp" else None
    date = _DATE.search(text)
    month = (int(date[1]), int(date[2])) if date else None
    if month is not None and "before" in text.lower():
        month = (month[0], month[1] - 1) if month[1] > 1 else (month[0] - 1, 12)
    release, assumption = _release(engine, text, month, said, build)
    return Version(
        engine=engine,
        text=text,
        release=release,
        build=build,
        date=month,
        generation=said,
        fork=fork,
        assumption=assumption,
    )


def _release(
    engine: str, text: str, month: tuple[int, int] | None, generation: int | None, build: int | None
) -> tuple[Release, str | None]:
    found = None if month or _SOURCE_BUILD.search(text) else _RELEASE.search(text)
    if found:
        patch = found[3] or "0"
        release = (int(found[1]), int(found[2]), _LAST_PATCH if patch == "x" else int(patch))
        return release, f"the last patch of {text}" if patch == "x" else None
    if month is not None and engine in _DATES:
        release = _by_date(engine, month)
        if release != NEWEST:
            return release, f"{engine} {_dotted(release)}, the newest release of {month[0]}-{month[1]:02}"
    if month is not None or build is not None:
        return NEWEST, None
    if generation == 0:
        return (0, 8, 5), None
    return NEWEST, f"the newest {engine}: {text!r} names no release"


def _by_date(engine: str, month: tuple[int, int]) -> Release:
    """The release of that month; before the table its first one, after it the newest."""
    table = _DATES[engine]
    if month > table[-1][0]:
        return NEWEST
    return next((release for date, release in reversed(table) if date <= month), table[0][1])


def since(version: Version, name: str) -> bool:
    """Is this llama.cpp as new as that change? The builds of a month count as after it."""
    change = next(known for known in CHANGES if known.name == name)
    if version.date is not None:
        return version.date >= change.month
    return version.build is None or version.build >= change.build


def _dotted(release: Release) -> str:
    return ".".join(str(part) for part in release)


def habit(engine: str, name: str) -> Habit:
    return next(known for known in HABITS if known.engine == engine and known.name == name)


def has(version: Version, name: str) -> bool:
    """Does this version have that habit?"""
    known = habit(version.engine, name)
    return known.since <= version.release and (known.until is None or version.release < known.until)
