"""The forms that loggers, launchers and collectors put before a message, by their first character.

Named groups tell: `ts` (a full timestamp), `epoch`, `rank` (`rank2` is its number), `pid`, `file`, `level`,
`container`. Patterns are anchored by `match`, and every repetition is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TS = (
    r"(?P<ts>\d{4}[-/.]\d\d[-/.]\d\d[T ]{1,2}\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"|\d{4}/\d\d/\d\d - \d\d:\d\d:\d\d|\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)"
)
LEVEL = (
    r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|SUCCESS|"
    r"info|debug|warn|warning|error|fatal)"
)
_LETTER = r"(?P<level>[VDIWEF])"
_SHORT_DATE = r"\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_PATH = r"[\w./<>-]{1,120}:\d{1,6}"
_FILE = rf"(?P<file>{_PATH})"
_SYSLOG_DATE = (
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d(?: \d{4})? \d\d:\d\d:\d\d(?:\.\d{1,6})? "
)
_PID = r"(?P<pid>\d{1,8})"
_IP = r"(?:, ip=[^)]{1,64})?"
_PARALLEL = r"(?:(?:DP|TP|PP|EP|CP|SP|ATTN_TP|MOE_EP)\d{1,4})"
_MODULE = r"[\w.<>-]{1,120}(?::[\w<>]{1,80}){0,2}"
_LLAMA_CPP = (
    r"(?:srv|slot|llama_\w{1,60}|ggml_\w{1,60}|load_tensors|llm_load_\w{1,40}|common_\w{1,40}|print_info"
    r"|clip_\w{1,40}|graph_reserve|sched_reserve)[ :]"
)


@dataclass(frozen=True, slots=True)
class Form:
    """`speaker` is who is unmistakably meant (`process`: somebody whose own prefix follows). `stamped`:
    counts only after a timestamp or a logger. `keep`: what it tells is noted, and it stays in the text.
    `dated`: it is a timestamp of its own."""

    pattern: re.Pattern[str]
    speaker: str | None = None
    stamped: bool = False
    keep: bool = False
    dated: bool = False


def _form(pattern: str, speaker: str | None = None, **marks: bool) -> Form:
    return Form(re.compile(pattern), speaker, **marks)


_DIGIT = (
    # A container runtime's `2026-01-02T03:04:05.123456789Z stdout F `.
    _form(TS + r" (?:stdout|stderr) [FP] "),
    # loguru, and Python's ` - name - LEVEL - `.
    _form(rf"{TS} ?\| ?{LEVEL} {{0,8}}\| (?P<file>{_MODULE}) - ", "logger"),
    _form(rf"{TS} - (?P<file>[\w./-]{{1,120}}) - {LEVEL} - ", "logger"),
    _form(TS + r"[ \t]{1,4}(?:-|\||>>)?[ \t]{0,4}"),
    _form(TS + r"$"),
    # llama.cpp since late 2025: minutes, seconds, milliseconds, microseconds; it looks like an address.
    _form(r"\d{1,5}\.\d\d\.\d{3}\.\d{3} (?P<level>[DIWE]) ", "logger"),
    _form(r"(?P<epoch>1[0-9]{9}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?)[ \t]{1,4}(?=\S)"),
    _form(r"(?P<rank>\d{1,4}): (?=\S)"),  # srun --label
    _form(r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})? (?=[\[(A-Z|-])(?:[-|] )?"),
)
_SQUARE = (
    _form(r"\[(?P<rank>rank\d{1,5})\]:? ?"),
    _form(r"\[(?P<rank>default\d{1,4})\]:"),
    _form(r"\[\d{1,4},(?P<rank>\d{1,5})\]<std(?:out|err)>:"),
    _form(rf"\[{TS}(?P<rank>(?: {_PARALLEL}){{1,6}})\] ", "logger"),
    _form(rf"\[{TS}(?: gpu_id=(?P<rank>\d{{1,3}}))?\]:? ?"),
    # Ray's C++ parts: `[2026-01-02 03:04:05,123 E 17 17] (raylet) node_manager.cc:3: `.
    _form(
        rf"\[{TS} (?P<level>[DIWECF]) \d{{1,8}} \d{{1,8}}\] (?:\((?P<rank>[a-z_]{{1,40}})\) )?{_FILE}: ",
        "logger",
    ),
    _form(r"\[(?P<ts>[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4})\] ", "kernel"),
    _form(r"\[ {0,8}\d{1,9}\.\d{6}\](?:\[[ TC\d]{1,12}\])? ", "kernel"),
    _form(
        r"\[(?:[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d| {0,8}[+<] ?\d{1,9}\.\d{6}>?)\] ", "kernel"
    ),  # dmesg -H, -d
    _form(r"\[(?:gpu|gpu_id)=(?P<rank>\d{1,3})\] ", "logger"),
    _form(r"\[pod/[\w./-]{1,200}\] "),
    _form(rf"\[[DIWEF]\d{{4}} \d\d:\d\d:\d\d\.\d{{1,9}} (?:\d{{1,8}} )?{_FILE}\] ", "logger"),
    _form(rf"\[{LEVEL}\|{_FILE}\] ", "logger"),
    _form(rf"\[{LEVEL} {{0,4}}\] ", "logger"),
    _form(r"\[(?P<level>[DIWEF]) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,80}\] ", "logger"),
    _form(rf"\[{_FILE}(?::\w{{1,80}})?\] ", "logger", stamped=True),
    _form(rf"\[{_PID}\] ", stamped=True),
    _form(rf"\[(?P<rank>{_PARALLEL}(?:[ _]{_PARALLEL}){{0,5}})\] "),
    # TensorRT-LLM and TurboMind name themselves: readers may want to see it.
    _form(rf"\[TensorRT-LLM\]\[{LEVEL}\]", "logger", keep=True),
    _form(rf"\[TRT-LLM\] (?:\[(?:RANK|rank) (?P<rank>\d{{1,4}})\] )?\[{_LETTER}\]", "logger", keep=True),
    _form(rf"\[TM\]\[{LEVEL}\]", "logger", keep=True),
    _form(rf"\[GIN\] {TS}", "logger", keep=True),
)
_ROUND = (
    _form(rf"\((?P<rank>[A-Za-z_][\w.:-]{{0,80}})(?: rank=(?P<rank2>\d{{1,5}}))?,? pid={_PID}{_IP}\):? ?"),
    _form(rf"\(pid={_PID}{_IP}\):? ?"),
    _form(rf"\((?P<rank>raylet|autoscaler|gcs_server){_IP}\) "),
    _form(rf"\((?P<rank>[A-Za-z][\w ]{{0,40}}) pid={_PID}\):? ?"),
)
_SYSLOG_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_WORD = (
    # `dmesg -x` and collectors of the kernel's log: facility and level.
    _form(rf"kern {{0,3}}: ?{_SYSLOG_LEVEL} {{0,4}}: (?=\S)", "kernel"),
    _form(rf"(?:user|daemon|syslog) {{0,3}}: ?{_SYSLOG_LEVEL} {{0,4}}: (?=\S)", dated=True),
    # vLLM: `INFO 01-02 03:04:05 [core.py:12] `, earlier `INFO 01-02 03:04:05 core.py:12] `.
    _form(rf"{LEVEL} {_SHORT_DATE} \[[^\]\n]{{0,20}}?{_FILE}\] ?", "logger"),
    _form(rf"{LEVEL} {_SHORT_DATE} {_FILE}\] ?", "logger"),
    _form(rf"{LEVEL} {_SHORT_DATE} ", "logger"),
    _form(rf"{LEVEL}[: ] ?{TS} (?:\[?{_FILE}\] )?", "logger"),
    _form(rf"{LEVEL}:[ \t]{{1,10}}(?:{TS} ?)?(?=\S)", "logger"),
    _form(LEVEL + r":(?P<file>[A-Za-z_][\w.]{1,100}):(?=\S)", "logger"),
    _form(
        rf"[DIWEF]\d{{4}}(?:\d{{4}})? \d\d:\d\d:\d\d\.\d{{1,9}} {{1,4}}(?:\d{{1,8}} )?{_FILE}\] ", "logger"
    ),
    # syslog and journald; the kernel's lines among them.
    _form(_SYSLOG_DATE + r"(?:[\w.-]{1,64} )?kernel(?:\[\d{1,8}\])?: ", "kernel", dated=True),
    _form(
        rf"{_SYSLOG_DATE}(?P<container>[\w.-]{{1,64}}) [\w./@:()-]{{1,80}}(?:\[{_PID}\])?: ",
        dated=True,
    ),
    _form(_SYSLOG_DATE, dated=True),
    _form(r"(?:[\w.-]{1,64} )?kernel(?:\[\d{1,8}\])?: ", "kernel", stamped=True),
    _form(r"kernel: (?=\[)", "kernel"),
    _form(rf"[\w.-]{{1,64}} (?P<file>[\w./@-]{{1,80}})\[{_PID}\]: ", "process", stamped=True),
    _form(
        rf"[\w.-]{{1,64}}:{_PID}:\d{{1,8}} \[(?P<rank>\d{{1,3}})\] NCCL (?P<level>[A-Z]{{3,8}}) ",
        "logger",
        keep=True,
    ),
    # logfmt (Ollama, Go): what stands from `msg=` on is the message.
    _form(
        rf"time=\"?{TS}\"? (?:level=(?P<level>\w{{1,10}}) )?(?:source={_FILE} )?(?:level=\w{{1,10}} )?",
        "logger",
    ),
    _form(
        rf"ts=\"?{TS}\"? (?:caller=(?P<file>\S{{1,120}}) )?(?:level=(?P<level>\w{{1,10}}) )?"
        r"(?:caller=\S{1,120} )?",
        "logger",
    ),
    # docker compose; a name without a number only before what looks like a prefix again.
    _form(r"(?P<container>[A-Za-z][\w.-]{0,80}[-_]\d{1,4})[ \t]{1,40}\| "),
    _form(r"(?P<container>[a-z][a-z0-9_.-]{0,80})[ \t]{1,40}\| (?=[A-Z\[({]|20\d\d)"),
    _form(rf"{LEVEL}(?::|[ \t]{{1,8}}(?:-|\|)?)[ \t]{{0,4}}", "logger", stamped=True),
    # Rust's tracing: `text_generation_client: router/client/src/lib.rs:46: `.
    _form(
        rf"(?P<file>[a-z]\w*(?:::\w{{1,60}}){{0,6}}): (?:(?P<file2>{_PATH}): )?",
        stamped=True,
        keep=True,
    ),
    _form(
        r"(?P<file>[\w./-]{1,120}\.(?:py|cpp|cc|cu|rs|go|c|h):\d{1,6})(?:\]|:| -| \|)? ",
        "logger",
        stamped=True,
    ),
    _form(rf"(?P<file>[A-Za-z_]\w{{0,40}}(?:\.\w{{1,40}}){{1,6}}) - {LEVEL} - ", "logger", stamped=True),
    _form(_LLAMA_CPP, "logger", keep=True),
)
_DASH = (
    _form(rf"- (?P<file>[\w./-]{{1,120}}) - {LEVEL} - ", "logger", stamped=True),
    _form(r"- (?=\S)", stamped=True),
)
_BAR = (_form(rf"\| ?{LEVEL} {{0,8}}\| (?P<file>{_MODULE}) - ", "logger", stamped=True),)
_ANGLE = (_form(r"<\d{1,3}>(?:1 )?"),)  # the priority of syslog
_NONE: tuple[Form, ...] = ()
_BY_FIRST = {"[": _SQUARE, "(": _ROUND, "-": _DASH, "|": _BAR, "<": _ANGLE}

# stern, wandb, Slurm and others put words of their own first: the engine's prefix stands a little later.
DEEP = re.compile(
    r"[\w./:@=+-]{1,120}(?: {1,3}[\w./:@=+-]{1,120}){0,2}[ |]{1,4}"
    r"(?=(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"|\((?:EngineCore|APIServer|Worker|VllmWorker)"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z_]{2,7}\d{1,4}){0,6}\] )"
)


def forms_for(text: str) -> tuple[Form, ...]:
    """The forms that can begin like `text`."""
    first = text[:1]
    if first.isalpha():
        return _WORD
    return _DIGIT if first.isdigit() else _BY_FIRST.get(first, _NONE)
