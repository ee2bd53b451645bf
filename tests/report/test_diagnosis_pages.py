"""A diagnosis as a page for the terminal and as Markdown."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kvprobe.diagnose.causes import CAUSES
from kvprobe.diagnose.model import Diagnosis, Evidence, Finding, Observation, Quantity
from kvprobe.report.cause_words import CAUSE_WORDS, SYMPTOM_WORDS, facts_line, quantity
from kvprobe.report.diagnosis_markdown import fence, markdown_of, words
from kvprobe.report.diagnosis_text import text_of
from tests.report.test_markdown import ACTIVE, PARSER, flat

GIB = 2**30


def finding(
    cause: str = "kv_pool_pressure", role: str = "primary", text: str = "Running: 9", line: int = 7
) -> Finding:
    return Finding(
        cause=cause,
        role=role,  # type: ignore[arg-type]
        confidence="likely",
        symptom=None,
        why="The pool is 97 % full and 12 requests wait.",
        evidence=[Evidence(source="a.log", line=line, text=text, facts={"free": Quantity(1.5 * GIB, "B")})],
        check_first=["the queue", "the lengths"],
        remedy=["`--max-num-seqs 8`: shorter queue", "more memory"],
        would_change_my_mind=["an empty queue"],
    )


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(
        primary=findings[0].cause if findings else "healthy_baseline",
        findings=list(findings),
        observations=[Observation(id="x", text="4.61x is the worst case")],
        read={
            "bytes": 1024,
            "lines": 9,
            "engine": "vllm",
            "engine_version": "0.11.0",
            "skipped": 3,
            "notes": ["a note"],
        },
    )


def test_every_cause_and_symptom_has_plain_words() -> None:
    assert set(CAUSE_WORDS) == CAUSES
    assert len(SYMPTOM_WORDS) == 5


def test_the_page_says_all_that_the_diagnosis_says() -> None:
    found = diagnosis(
        finding(), finding("queue_limit", "secondary", "Waiting: 12", 8), finding("kv_pool_idle", "ruled_out")
    )
    for page in (text_of(found, title="a.log"), markdown_of(found)):
        told = " ".join(page.replace("\\", "").split())
        for words_ in (
            *(
                "kv_pool_pressure",
                "97 % full",
                "a.log:7",
                "Running: 9",
                "1.50 GiB",
                "the queue",
                "--max-num-seqs 8",
            ),
            *(
                "more memory",
                "an empty queue",
                "queue_limit",
                "Waiting: 12",
                "kv_pool_idle",
                "4.61x",
                "9 lines",
                "a note",
            ),
            *("vllm", "0.11.0", "3 lines not read in full"),
        ):
            assert words_ in told, words_


def test_the_page_fits_and_order_is_cause_proof_remedy() -> None:
    page = text_of(diagnosis(finding(text="x" * 3000)), title="a" * 200)
    assert all(len(line) <= 80 for line in page.splitlines())
    places = [
        page.index(word)
        for word in ("cause", "why", "proof", "look first", "remedy", "refuted by", "note", "read")
    ]
    assert places == sorted(places)
    assert "more characters" in page


def test_evidence_is_printed_once() -> None:
    page = text_of(diagnosis(finding(), finding("queue_limit", "secondary")), title="a")
    assert page.count("Running: 9") == 1
    assert "a.log:7 (shown above)" in page


def test_a_healthy_server() -> None:
    assert "nothing wrong was found" in text_of(diagnosis(), title="a.log")
    assert "Nothing wrong was found" in markdown_of(diagnosis())


HOSTILE = [
    "``` \n# heading",
    "````` five",
    "</details><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](http://evil/x.png)",
    "@everyone look",
    "fixes #1 and closes GH-2, org/repo#3",
    "| a | b |\n|---|---|",
    "https://evil.example/x www.evil.example",
    "<!-- hidden -->",
    "\x1b[2J\u202e\u200b",
    "`code with @everyone <b>`",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_comes_out_of_a_log_line_in_markdown(text: str) -> None:
    found = finding(text=text)
    found.why = text
    found.remedy = [text]
    page = markdown_of(diagnosis(found))
    tokens = list(flat(PARSER.parse(page)))
    assert not {t.type for t in tokens} & {"html_block", "html_inline", "link_open", "image", "table_open"}
    assert not [t.content for t in tokens if t.type == "text" and ACTIVE.search(t.content)]
    headings = [t.tag for t in tokens if t.type == "heading_open"]
    assert headings == ["h2", *["h3"] * 6], "ours, and none of the log's"
    assert not re.search("[\x1b\u202e\u200b]", page)


def test_a_fence_is_longer_than_what_it_holds() -> None:
    for n in range(8):
        block = fence("a " + "`" * n + " b")
        mark = block.split("text\n")[0]
        assert set(mark) == {"`"}
        assert len(mark) > n
        assert len(mark) >= 3


def test_words_keep_our_code_and_read_well() -> None:
    assert words("set `--max-num-seqs 8`, then 0.9 is fine.") == "set `--max-num-seqs 8`, then 0.9 is fine."


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (Quantity(1.5 * GIB, "B"), "1.50 GiB"),
        (Quantity(-GIB, "B"), "-1.00 GiB"),
        (Quantity(0.42, "ratio"), "42.0 %"),
        (Quantity(4.61, "ratio"), "4.61x"),
        (Quantity(12345, "tokens"), "12,345 tokens"),
        (Quantity(3, "count"), "3"),
        (Quantity("bf16", None), "bf16"),
        (Quantity(True, None), "True"),
        (Quantity([GIB, 2 * GIB], "B"), "1.00 GiB + 2.00 GiB"),
        (Quantity(float("nan"), "B"), "nan B"),
        (Quantity(float("inf"), None), "inf"),
    ],
)
def test_quantities_read_as_a_person_writes_them(told: Quantity, shown: str) -> None:
    assert quantity(told) == shown


def test_facts_leave_out_what_is_not_known() -> None:
    assert facts_line(
        {"free": Quantity(GIB, "B"), "own": Quantity(None, "B"), "tokens": Quantity(5, "tokens")}
    ) == ("free 1.00 GiB, 5 tokens")


def test_the_documentation_lists_every_cause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
    for cause, meaning in CAUSE_WORDS.items():
        assert f"| `{cause}` | {meaning} |" in page, cause


def test_a_line_that_proves_two_things_is_shown_once_with_both_numbers(tmp_path: Path) -> None:
    first = finding(text="one line")
    more = Evidence(source="a.log", line=7, text="one line", facts={"total": Quantity(8 * GIB, "B")})
    found = diagnosis(msgspec.structs.replace(first, evidence=[*first.evidence, more]))
    for page in (text_of(found, title="a.log"), markdown_of(found)):
        assert page.count("one line") == 1
        assert "total 8.00 GiB" in page


def test_evidence_names_the_file_and_the_title_where_it_lies(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "very" / "long" / "way"
    deep.mkdir(parents=True)
    paths = [str(deep / "server.log"), str(tmp_path / "server.log"), str(deep / "other.log")]
    for path in paths:
        Path(path).write_text("x")
    pieces = [Evidence(source=path, line=7, text="said", facts={}) for path in paths]
    page = text_of(diagnosis(msgspec.structs.replace(finding(), evidence=pieces)), title="x", width=400)
    assert " other.log:7" in page
    assert all(f"{path}:7" in page for path in paths[:2]), "two of one name are told apart"


def test_an_interval_reads_as_one() -> None:
    told = {
        "ttft_ci": Quantity([0.01, 0.02], "s"),
        "ratio_ci": Quantity([0.9938, 1.0297], "ratio"),
        "share_ci": Quantity([0.25, 0.5], "ratio"),
    }
    assert (
        facts_line(told)
        == "ttft 95 % [10.0 ms - 20.0 ms], ratio 95 % [0.99x - 1.03x], share 95 % [25.0 % - 50.0 %]"
    )
