"""`kvprobe plan` as a user runs it: exit codes, pages, hostile names, what it imports, how long it takes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvprobe.cli.main import main
from kvprobe.errors import Exit
from tests.plan.configs import GPT_OSS_20B, LLAMA_8B, MHA_7B, QWEN35_35B, write

FORMULA = ["--gpu", "80GiB", "--weights", "14GiB", "--overhead", "6GiB", "--margin", "4GiB"]
LENGTHS = ["--lengths", "p50=1000,p95=4000,max=8000"]


def plan(*args: str) -> int:
    return main(["plan", *args])


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert plan(*args) == Exit.OK
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write(tmp_path))


def test_the_page_begins_with_the_verdict(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--model", model, *FORMULA, *LENGTHS)
    lines = out.splitlines()
    assert lines[1].startswith("verdict")
    assert "fits" in lines[1]
    for words in (
        "budget",
        "= KV cache",
        "56.00 GiB",
        "458,752 tokens",
        "at once",
        "safe",
        "binds",
        "what if",
    ):
        assert words in out
    assert out.index("verdict") < out.index("budget") < out.index("at once") < out.index("what if")
    assert "\x1b" not in out  # no terminal, no colours


@pytest.mark.parametrize("config", [LLAMA_8B, QWEN35_35B, GPT_OSS_20B, MHA_7B])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "reference", "transformers", "lmdeploy"])
def test_it_fits_80_columns(
    tmp_path: Path,
    config: dict,
    engine: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    model = str(write(tmp_path, config))
    out = run(capsys, "--model", model, "--gpu", "80GiB", "--weights", "14GiB", "--engine", engine, *LENGTHS)
    assert max(len(line) for line in out.splitlines()) <= 80


def test_json_is_one_document(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "--model", model, *FORMULA, "--json"))
    assert document["schema"] == "kvprobe.plan/1"
    assert document["pool"]["tokens"] == 458_752


def test_a_plain_formula_is_called_a_bound(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", model, *FORMULA, "--lengths", "fixed:4000", "--json"]
    verdict = json.loads(run(capsys, *asked))["verdict"]
    assert "114 requests" in verdict
    assert "logical upper bound" in verdict
    assert "bound" not in json.loads(run(capsys, *asked, "--engine", "reference"))["verdict"]


def test_a_reason_does_not_squeeze_into_the_table(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capsys, "--model", model, "--gpu", "H100", "--engine", "vllm")
    lines = [line for line in out.splitlines() if "- weights" in line]
    assert lines[0].rstrip().endswith("not known")
    assert "the configuration does not hold the size of the weights" in out


def test_nothing_fits_is_no_error(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", model, "--gpu", "8GiB", "--weights", "14GiB", "--overhead", "1GiB"]
    assert json.loads(run(capsys, *asked, "--json"))["fits"] is False
    assert "does not fit" in run(capsys, *asked)


def test_an_unknown_layout_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write(tmp_path, {"model_type": "frobnicator", "num_hidden_layers": 2}))
    assert plan("--model", model, "--json") == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvprobe.error/1"
    assert "frobnicator" in document["errors"][0]["message"]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--model", "nowhere"],
        ["--model", "MODEL", "--gpu", "80"],
        ["--model", "MODEL", "--gpu", "Z9000"],
        ["--model", "MODEL", "--tp", "two"],
        ["--model", "MODEL", "--engine", "vlm"],
        ["--model", "MODEL", "--kv-dtype", "fp7"],
        ["--model", "MODEL", "--kv-dtype", "fp8", "--kv-dtype-k", "fp8"],
        ["--model", "MODEL", "--lengths", "p50=9,p95=3"],
        ["--model", "MODEL", "--kv-unified", "--no-kv-unified"],
        ["--model", "MODEL", "--prefix-caching", "maybe"],
        ["--model", "MODEL", "--running", "--a 'b"],
        ["--model", "MODEL", "--shards", "4"],
    ],
)
def test_bad_input_exits_2_with_a_fix(
    model: str, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(*[model if word == "MODEL" else word for word in args]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error[" in captured.err
    assert "fix:" in captured.err
    assert "Traceback" not in captured.err


def test_every_option_of_the_contract_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == Exit.OK
    text = capsys.readouterr().out
    contract = """--model --gpu --weights --overhead --margin --engine --engine-version --available-kv
    --gpu-memory-utilization --non-torch --activation-peak --free-memory --kv-fraction --mem-fraction-static
    --swa-full-tokens-ratio --mamba-full-memory-ratio --max-running-requests --swap-space --tp --pp --kv-dtype
    --kv-dtype-k --kv-dtype-v --block-size --max-model-len --max-num-batched-tokens --max-num-seqs
    --prefix-caching --mamba-cache-mode --speculative-tokens --draft-layers --ctx --parallel --ubatch
    --kv-unified --no-kv-unified --swa-full --tokens --lengths --shared-prefix --price-per-hour
    --html --json"""
    for option in contract.split():
        assert f"{option} " in text or f"{option}\n" in text, option


def test_the_environment_gives_what_was_not_said(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPROBE_GPU", "80GiB")
    monkeypatch.setenv("KVPROBE_WEIGHTS", "70GiB")
    document = json.loads(run(capsys, "--model", model, "--weights", "14GiB", "--overhead", "6GiB", "--json"))
    assert document["budget"]["kv"]["bytes"] == 60 * 2**30


def test_switches_and_the_model_come_from_the_environment_too(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPROBE_MODEL", model)
    monkeypatch.setenv("KVPROBE_KV_UNIFIED", "1")
    asked = ["--engine", "llama.cpp", "--ctx", "4096", "--parallel", "4", "--json"]
    assert "oversubscribed" in run(capsys, *asked)
    assert "oversubscribed" not in run(capsys, *asked, "--no-kv-unified")


def test_several_models_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for name, config in (("gqa", LLAMA_8B), ("mha", MHA_7B)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, config)
        folders += ["--model", str(tmp_path / name)]
    out = run(capsys, *folders, "--gpu", "24GiB", "--weights", "14GiB", "--overhead", "2GiB")
    assert "gqa holds most: 300.0 % more" in out
    assert out.count("verdict") == 2


HOSTILE = "x\x1b[2J\x1b]0;owned\x07\u202e<script>alert(1)</script>\"'&[bold]|--evil"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href") or name.startswith("on")
        ]


def hostile_model(tmp_path: Path) -> str:
    config = {**LLAMA_8B, "_name_or_path": HOSTILE, "architectures": ["LlamaForCausalLM"]}
    folder = tmp_path / "m[red]<b>\x1b[31m"
    folder.mkdir()
    return str(write(folder, config))


def test_a_hostile_name_is_harmless_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(
        capsys, "--model", hostile_model(tmp_path), *FORMULA, "--engine", "vllm", "--engine-version", HOSTILE
    )
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\x07" not in out
    assert "<script>" in out  # shown as the text it is


def test_html_is_one_offline_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    model = hostile_model(tmp_path)
    run(
        capsys,
        "--model",
        model,
        *FORMULA,
        *LENGTHS,
        "--engine",
        "vllm",
        "--engine-version",
        HOSTILE,
        "--html",
        str(page),
    )
    text = page.read_text(encoding="utf-8")
    found = Tags()
    found.feed(text)
    # The page's own script is the only one, and the policy names it by its hash (tests/report/test_html.py).
    assert found.tags.isdisjoint({"img", "iframe", "link", "form", "b", "object"})
    assert text.count("<script") == 1
    assert all(link.startswith("#") for link in found.links)
    assert "default-src 'none'" in text
    assert "\x1b" not in text
    assert "@media (max-width" in text  # a telephone shows it too: wide tables scroll by themselves
    for words in ("Memory of one GPU", "What if", "Flags", "Assumptions"):
        assert words in text


def test_html_that_cannot_be_written_exits_6(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--model", model, *FORMULA, "--html", str(tmp_path / "no" / "x.html")) == Exit.STORAGE
    assert "Traceback" not in capsys.readouterr().err


def test_plan_imports_neither_torch_nor_pandas(model: str) -> None:
    """And is quick once Python is up: the bound is loose, the machine may be busy."""
    code = (
        "import sys, time, json\n"
        "from kvprobe.cli.main import main\n"
        f"argv = {['plan', '--model', model, *FORMULA, *LENGTHS, '--engine', 'vllm', '--json']!r}\n"
        "assert main(argv) == 0\n"
        "start = time.perf_counter()\n"
        "assert main(argv) == 0\n"
        "print(json.dumps([time.perf_counter() - start, sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout.splitlines()[-1])
    assert set(modules).isdisjoint({"torch", "pandas", "locust", "gevent", "pyarrow", "scipy"})
    assert seconds < 5


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, json\nfrom kvprobe.cli.main import main\nassert main(['plan', '--help']) == 0\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert modules.isdisjoint({"torch", "pandas", "numpy", "rich", "msgspec", "kvprobe.plan.settings"})


def test_a_plan_takes_well_under_a_second(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", model, *FORMULA, "--lengths", "p50=1000,p95=8000,max=32000", "--json"]
    run(capsys, *asked)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run(capsys, *asked)
        times.append(time.perf_counter() - start)
    assert min(times) < 2.5  # 0.2 s on a quiet machine


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "plan"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["title"] == "kvprobe.plan/1"
