"""The panel, the plain line and the document, on consoles of every kind and with hostile text."""

from __future__ import annotations

import io
import json

import jsonschema
import pytest
from rich.console import Console

from kvprobe.observe.dialects import read_page
from kvprobe.observe.metrics import Scrape, ScrapeFailure
from kvprobe.watch.model import GpuView, WatchDocument, document, watch_schema
from kvprobe.watch.panel import page
from kvprobe.watch.plain import lines
from kvprobe.watch.target import WatchedTarget
from kvprobe.watch.together import together
from tests.watch.pages import S, vllm

EVIL = "\\n\x1b[2J\x1b]0;owned\x07[bold]‮"


def watched(*texts: str | None, url: str = "http://127.0.0.1:1/metrics") -> WatchedTarget:
    target = WatchedTarget(url, interval_s=1.0)
    for second, text in enumerate(texts):
        if text is None:
            target.take(Scrape(second * S, 0.01, failure=ScrapeFailure("unreachable", "refused")))
        else:
            target.take(Scrape(second * S, 0.01, page=read_page(text)))
    target.close()
    return target


def shown(*targets: WatchedTarget, gpus: list[GpuView] | None = None) -> WatchDocument:
    views = [target.view() for target in targets]
    return WatchDocument(
        t_utc="2026-11-30T10:11:12.000Z",
        interval_s=1.0,
        red_line_ratio=0.9,
        idle_line_ratio=0.3,
        targets=views,
        together=together(views),
        gpus=gpus,
        gpu_note=None if gpus else "no NVML device",
    )


def drawn(view: WatchDocument, *targets: WatchedTarget, width: int, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=file, width=width, color_system=None, markup=False, emoji=False)
    console.print(page(console, view, [list(t.history) for t in targets], live=True))
    file.flush()
    return raw.getvalue().decode(encoding)


FULL = watched(*[vllm(running=8, waiting=3, kv=0.97, made=100 * i) for i in range(3)])
GONE = watched(vllm(kv=0.5), None)
NEVER = watched(None)


@pytest.mark.parametrize("width", [30, 62, 80, 124, 250])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_page_fits_any_screen(width: int, encoding: str) -> None:
    text = drawn(shown(FULL, GONE, NEVER), FULL, GONE, NEVER, width=width, encoding=encoding)
    assert max(len(line) for line in text.splitlines()) <= width
    flat = " ".join(text.split())
    assert "97.0 %" in flat
    assert "pressure" in flat


def test_the_two_lines_stand_on_the_water_level() -> None:
    text = drawn(shown(FULL), FULL, width=100)
    level, scale = (line for line in text.splitlines() if "97.0 %" in line or "idle 30 %" in line)
    assert level.index("┊") == scale.index("idle")
    assert level.index("┃") == scale.index("90 %")
    cells = level[level.index("█") : level.index(" 97.0")]
    assert cells.index("┊") / len(cells) == pytest.approx(0.30, abs=0.02)
    assert cells.index("┃") / len(cells) == pytest.approx(0.90, abs=0.02)


def test_what_is_not_there_is_said_not_zero() -> None:
    llama = watched("llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n")
    text = drawn(shown(llama), llama, width=100)
    assert "│ KV use     not exported" in text
    assert "preempted  not exported" in text
    assert "0.0 %" not in text
    assert "kv not exported" in lines(shown(llama))[0]


def test_targets_that_are_gone_are_shown_beside_those_that_answer() -> None:
    told = lines(shown(FULL, NEVER))
    assert told[0].startswith("10:11:12 http://127.0.0.1:1/metrics vllm  kv 97.0 %  running 8  waiting 3")
    assert told[0].endswith("| full and queueing: pressure")
    assert told[1].endswith("| unreachable: refused")
    gone = GONE.view()
    assert (gone.reachable, gone.engine) == (False, "vllm")
    assert gone.reading.text.startswith("gone for ")
    assert {number.state for number in gone.numbers.values()} == {"scrape_failed"}


def test_replicas_together_are_averaged_and_summed_and_a_part_is_no_sum() -> None:
    one = watched(*[vllm(running=8, waiting=3, kv=0.9)] * 2)
    two = watched(*[vllm(running=2, waiting=0, kv=0.5)] * 2)
    told = lines(shown(one, two))[-1]
    assert told == (
        "10:11:12 all: 2 of 2 answer, 10 running, 3 waiting, KV use 70.0 % on average, 90.0 % at most"
    )
    assert (
        "all: 1 of 2 answer, ? running, ? waiting, KV use 90.0 % on average" in lines(shown(one, NEVER))[-1]
    )
    assert shown(one).together is None


def test_a_page_that_comes_back_counts_on() -> None:
    back = watched(vllm(kv=0.5, made=100), None, vllm(kv=0.6, made=160)).view()
    assert back.reachable
    assert back.numbers["generated_tokens_per_s"].n == 60
    assert back.numbers["generated_tokens_per_s"].window_s == 2


def test_hostile_labels_cannot_paint_the_screen() -> None:
    page_text = vllm(EVIL, running=1, waiting=2, kv=0.95) + vllm("1", running=1, waiting=0, kv=0.1)
    target = watched(page_text, page_text, page_text)
    text = drawn(shown(target), target, width=120) + "\n".join(lines(shown(target)))
    assert "owned" in text  # it is shown, as its codes
    for char in ("\x1b", "\x07", "‮"):
        assert char not in text
    plain = document(shown(target))
    assert plain["targets"][0]["engines"][0]["engine"] in ("1", EVIL.replace("\\n", "\n"))


def test_gpus_under_the_panels() -> None:
    gpus = [
        GpuView(
            gpu="0", mig=None, name="H", memory_used_bytes=60 * 2**30, memory_total_bytes=80 * 2**30,
            utilization_ratio=0.5, throttled_by=["hw_thermal"], lost=False,
        ),
        GpuView(
            gpu="1", mig=None, name=None, memory_used_bytes=None, memory_total_bytes=None,
            utilization_ratio=None, throttled_by=[], lost=True,
        ),
    ]  # fmt: skip
    text = drawn(shown(FULL, gpus=gpus), FULL, width=100)
    assert "GPU 0: 60.0 GiB of 80.0 GiB, busy 50.0 % of the time, throttled: hw_thermal" in text
    assert "GPU 1: LOST" in text


def test_the_document_keeps_its_schema() -> None:
    for view in (shown(FULL, GONE, NEVER), shown(NEVER)):
        plain = json.loads(json.dumps(document(view), allow_nan=False))
        jsonschema.validate(plain, watch_schema())
        for target in plain["targets"]:
            for number in target["numbers"].values():
                assert (number["value"] is None) == (number["state"] != "read")
    infinite = watched(vllm(kv="+Inf", running="-Inf", made="NaN"))
    json.dumps(document(shown(infinite)), allow_nan=False)


def test_many_engines_with_long_labels_do_not_fill_the_screen() -> None:
    many = "".join(vllm(engine=f"{'9' * 4000}{i}", running=1, waiting=0, kv=0.5) for i in range(100))
    target = watched(many, many)
    text = drawn(shown(target), target, width=100)
    assert len(text.splitlines()) < 60
    assert "and 68 more" in text
    assert len(shown(target).targets[0].engines) == 100, "the document has all"
