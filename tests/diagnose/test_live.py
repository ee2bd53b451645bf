"""A live server, looked at a few times: the run's rules over the looks."""

from __future__ import annotations

from kvprobe.diagnose.live import live_candidates
from kvprobe.diagnose.log_view import LogView
from kvprobe.observe.dialects import read_page

PAGE = """\
kvprobe:num_requests_running{{engine="0",model_name="m"}} {running}
kvprobe:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
kvprobe:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
kvprobe:num_preemptions_total{{engine="0",model_name="m"}} {preempted}
kvprobe:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="4096",max_num_seqs="2"}} 1
"""


def causes(*looks: tuple[float, float, float, float], count: int = 6) -> list[str]:
    pages = []
    for i in range(count):
        running, waiting, usage, preempted = looks[i % len(looks)]
        text = PAGE.format(
            running=running, waiting=waiting, usage=usage, preempted=preempted + i * (preempted > 0)
        )
        pages.append((i * 500_000_000, read_page(text)))
    return [c.finding.cause for c in live_candidates(pages, "http://x/metrics", LogView(events=[]))]


def test_a_limit_that_is_reached_with_room_left() -> None:
    assert causes((2, 5, 0.1, 0)) == ["queue_limit"]


def test_a_full_pool_with_growing_preemptions() -> None:
    assert causes((8, 3, 0.97, 5)) == ["kv_pool_pressure"]


def test_a_healthy_server_shows_nothing() -> None:
    assert causes((1, 0, 0.4, 0), (2, 0, 0.95, 0)) == []


def test_two_looks_are_too_few() -> None:
    assert causes((2, 5, 0.1, 0), count=2) == []
