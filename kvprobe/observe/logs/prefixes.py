"""What loggers, launchers and collectors put before a message, one table of forms.

`strip_prefixes` takes them off from the outside in and keeps what they told: time, rank, pid, logger,
level, and who speaks. A form that is only a part of a prefix (a level, a file name) counts only after
something unmistakable stood before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvprobe.observe.logs.clock import epoch_of_number, epoch_s

_TS = (
    r"(?P<ts>\d{4}[-/.]\d\d[-/.]\d\d[T ]{1,2}\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"|\d{4}/\d\d/\d\d - \d\d:\d\d:\d\d|\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)"
)
_LEVEL = (
    r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|SUCCESS|"
    r"info|debug|warn|warning|error|fatal)"
)
_SHORT_DATE = r"\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_FILE = r"(?P<file>[\w./<>-]{1,120}:\d{1,6})"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_PARALLEL = r"(?:(?:DP|TP|PP|EP|CP|SP|ATTN_TP|MOE_EP)\d{1,4})"


@dataclass(slots=True)
class Head:
    """What the prefixes of a line told. `speaker` is `logger` or `kernel` once one was unmistakable."""

    time_s: float | None = None
    container: str | None = None
    rank: str | None = None
    pid: int | None = None
    logger: str | None = None
    level: str | None = None
    speaker: str | None = None
    stamped: bool = False
    """Anything at all was taken off that stood for a timestamp or a logger."""


@dataclass(frozen=True, slots=True)
class _Form:
    """`stamped`: only after a timestamp. `keep`: note what it says, leave it in the text."""

    pattern: re.Pattern[str]
    speaker: str | None = None
    stamped: bool = False
    keep: bool = False


def _form(pattern: str, speaker: str | None = None, *, stamped: bool = False, keep: bool = False) -> _Form:
    return _Form(re.compile(pattern), speaker, stamped, keep)


_BY_FIRST: dict[str, tuple[_Form, ...]] = {
    "digit": (
        # Container runtime: `2026-01-02T03:04:05.123456789Z stdout F `
        _form(_TS + r" (?:stdout|stderr) [FP] "),
        # loguru, and Python's ` - name - LEVEL - `
        _form(_TS + r" ?\| ?" + _LEVEL + r" {0,8}\| (?P<file>[\w.<>-]{1,120}(?::[\w<>]{1,80}){0,2}) - ", "logger"),
        _form(_TS + r" - (?P<file>[\w./-]{1,120}) - " + _LEVEL + r" - ", "logger"),
        _form(_TS + r"[ \t]{1,4}(?:-|\||>>)?[ \t]{0,4}"),
        _form(_TS + r"$"),
        # llama.cpp since late 2025: minutes.seconds.milliseconds.microseconds, which looks like an address
        _form(r"\d{1,5}\.\d\d\.\d{3}\.\d{3} (?P<level>[DIWE]) ", "logger"),
        _form(r"(?P<epoch>1[0-9]{9}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?)[ \t]{1,4}(?=\S)"),
        _form(r"(?P<rank>\d{1,4}): (?=\S)"),
        _form(r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})? (?=[\[(A-Z|-])(?:[-|] )?", None),
        _form(_LEVEL + r" ", stamped=True),
    ),
    "[": (
        _form(r"\[(?P<rank>rank\d{1,5})\]:? ?"),
        _form(r"\[(?P<rank>default\d{1,4})\]:"),
        _form(r"\[\d{1,4},(?P<rank>\d{1,5})\]<std(?:out|err)>:"),
        _form(r"\[" + _TS + r"(?P<rank>(?: " + _PARALLEL + r"){1,6})\] ", "logger"),
        _form(r"\[" + _TS + r"(?: gpu_id=(?P<rank>\d{1,3}))?\]:? ?"),
        _form(r"\[(?P<ts>[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4})\] ", "kernel"),
        _form(r"\[ {0,8}\d{1,9}\.\d{6}\](?:\[[ TC\d]{1,12}\])? ", "kernel"),
        _form(r"\[(?:gpu|gpu_id)=(?P<rank>\d{1,3})\] ", "logger"),
        _form(r"\[pod/[\w./-]{1,200}\] "),
        _form(r"\[[DIWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} (?:\d{1,8} )?" + _FILE + r"\] ", "logger"),
        _form(r"\[" + _LEVEL + r"\|" + _FILE + r"\] ", "logger"),
        _form(r"\[" + _LEVEL + r" {0,4}\] ", "logger"),
        _form(r"\[(?P<level>[DIWEF]) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,80}\] ", "logger"),
        _form(r"\[" + _FILE + r"(?::\w{1,80})?\] ", "logger", stamped=True),
        _form(r"\[(?P<pid>\d{1,8})\] ", stamped=True),
        _form(r"\[(?P<rank>" + _PARALLEL + r"(?:[ _]" + _PARALLEL + r"){0,5})\] "),
        # TensorRT-LLM and TurboMind name themselves: readers may want to see it
        _form(r"\[TensorRT-LLM\]\[" + _LEVEL + r"\]", "logger", keep=True),
        _form(r"\[TRT-LLM\] (?:\[(?:RANK|rank) (?P<rank>\d{1,4})\] )?\[(?P<level>[VDIWEF])\]", "logger", keep=True),
        _form(r"\[TM\]\[" + _LEVEL + r"\]", "logger", keep=True),
        _form(r"\[GIN\] " + _TS, "logger", keep=True),
    ),
    "(": (
        _form(r"\((?P<rank>[A-Za-z_][\w.:-]{0,80})(?: rank=(?P<rank2>\d{1,5}))?,? pid=(?P<pid>\d{1,8})(?:, ip=[^)]{1,64})?\):? ?"),
        _form(r"\(pid=(?P<pid>\d{1,8})(?:, ip=[^)]{1,64})?\):? ?"),
        _form(r"\((?P<rank>raylet|autoscaler|gcs_server)(?:, ip=[^)]{1,64})?\) "),
        _form(r"\((?P<rank>[A-Za-z][\w ]{0,40}) pid=(?P<pid>\d{1,8})\):? ?"),
    ),
    "<": (_form(r"<\d{1,3}>(?:1 )?"),),
    "letter": (
        _form(_LEVEL + r" " + _SHORT_DATE + r" (?:\[[^\]\n]{0,20}?(?P<file>[\w./-]{1,120}:\d{1,6})\]|(?P<file2>[\w./-]{1,120}:\d{1,6})\]) ?", "logger"),
        _form(_LEVEL + r" " + _SHORT_DATE + r" ", "logger"),
        _form(_LEVEL + r"[: ] ?" + _TS + r" (?:\[?(?P<file>[\w./-]{1,120}:\d{1,6})\] )?", "logger"),
        _form(_LEVEL + r":[ \t]{1,10}(?:" + _TS + r" ?)?(?=\S)", "logger"),
        _form(_LEVEL + r":(?P<file>[A-Za-z_][\w.]{1,100}):(?=\S)", "logger"),
        _form(r"[DIWEF]\d{4}(?:\d{4})? \d\d:\d\d:\d\d\.\d{1,9} {1,4}(?:\d{1,8} )?" + _FILE + r"\] ", "logger"),
        _form(_MONTH + r" [ \d]\d(?: \d{4})? \d\d:\d\d:\d\d(?:\.\d{1,6})? (?:[\w.-]{1,64} )?kernel(?:\[\d{1,8}\])?: ", "kernel"),
        _form(_MONTH + r" [ \d]\d(?: \d{4})? \d\d:\d\d:\d\d(?:\.\d{1,6})? (?P<container>[\w.-]{1,64}) [\w./@:()-]{1,80}(?:\[(?P<pid>\d{1,8})\])?: "),
        _form(_MONTH + r" [ \d]\d(?: \d{4})? \d\d:\d\d:\d\d(?:\.\d{1,6})? "),
        _form(r"(?:[\w.-]{1,64} )?kernel(?:\[\d{1,8}\])?: ", "kernel", stamped=True),
        _form(r"kernel: (?=\[)", "kernel"),
        _form(r"[\w.-]{1,64} (?P<file>[\w./@-]{1,80})\[(?P<pid>\d{1,8})\]: ", stamped=True),
        _form(r"[\w.-]{1,64}:(?P<pid>\d{1,8}):\d{1,8} \[(?P<rank>\d{1,3})\] NCCL (?P<level>[A-Z]{3,8}) ", "logger", keep=True),
        _form(r"time=\"?" + _TS + r"\"? (?:level=(?P<level>\w{1,10}) )?(?:source=(?P<file>[\w./-]{1,120}:\d{1,6}) )?(?:level=\w{1,10} )?", "logger"),
        _form(r"ts=\"?" + _TS + r"\"? (?:caller=(?P<file>\S{1,120}) )?(?:level=(?P<level>\w{1,10}) )?(?:caller=\S{1,120} )?", "logger"),
        _form(r"(?P<container>[A-Za-z][\w.-]{0,80}[-_]\d{1,4})[ \t]{1,40}\| "),
        _form(r"(?P<container>[a-z][a-z0-9_.-]{0,80})[ \t]{1,40}\| (?=[A-Z\[({]|20\d\d)"),
        _form(_LEVEL + r"(?::|[ \t]{1,8}(?:-|\|)?)[ \t]{0,4}", "logger", stamped=True),
        _form(r"(?P<file>[a-z]\w*(?:::\w{1,60}){0,6}): (?:(?P<file2>[\w./-]{1,120}\.rs:\d{1,6}): )?", stamped=True, keep=True),
        _form(r"(?P<file>[\w./-]{1,120}\.(?:py|cpp|cc|cu|rs|go|c|h):\d{1,6})(?:\]|:| -| \|)? ", "logger", stamped=True),
        _form(r"(?P<file>[A-Za-z_]\w{0,40}(?:\.\w{1,40}){1,6}) - " + _LEVEL + r" - ", "logger", stamped=True),
        _form(r"(?:srv|slot|llama_\w{1,60}|ggml_\w{1,60}|load_tensors|llm_load_\w{1,40}|common_\w{1,40}|print_info|clip_\w{1,40}|graph_reserve|sched_reserve)[ :]", "logger", keep=True),
    ),
    "-": (_form(r"- (?P<file>[\w./-]{1,120}) - " + _LEVEL + r" - ", "logger", stamped=True), _form(r"- (?=\S)", stamped=True)),
    "|": (_form(r"\| ?" + _LEVEL + r" {0,8}\| (?P<file>[\w.<>-]{1,120}(?::[\w<>]{1,80}){0,2}) - ", "logger", stamped=True),),
}
_NO_FORMS: tuple[_Form, ...] = ()
_MAX_LAYERS = 8

# stern, wandb, Slurm and others put words of their own first: the engine's prefix stands a little later.
_DEEP = re.compile(
    r"[\w./:@=+-]{1,120}(?: {1,3}[\w./:@=+-]{1,120}){0,2}[ |]{1,4}"
    r"(?=(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d |\((?:EngineCore|APIServer|Worker|VllmWorker)"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z_]{2,7}\d{1,4}){0,6}\] )"
)


def strip_prefixes(text: str, head: Head) -> str:
    """The message of a line; what stood before it goes into `head`."""
    for _ in range(_MAX_LAYERS):
        stripped = _strip_one(text, head)
        if stripped is None:
            break
        text = stripped
    return text


def _strip_one(text: str, head: Head) -> str | None:
    for form in _forms(text):
        if form.stamped and not head.stamped:
            continue
        found = form.pattern.match(text)
        if found is None:
            continue
        _note(found, form, head)
        return None if form.keep else text[found.end() :].lstrip()
    if not head.stamped and (deep := _DEEP.match(text)) is not None:
        return text[deep.end() :]
    return None


def _forms(text: str) -> tuple[_Form, ...]:
    first = text[:1]
    if first.isdigit():
        return _BY_FIRST["digit"]
    if first.isalpha():
        return _BY_FIRST["letter"]
    return _BY_FIRST.get(first, _NO_FORMS)


def _note(found: re.Match[str], form: _Form, head: Head) -> None:
    told = found.groupdict()
    if ts := told.get("ts"):
        head.time_s = head.time_s or epoch_s(ts)
        head.stamped = True
    if epoch := told.get("epoch"):
        head.time_s = head.time_s or epoch_of_number(float(epoch))
        head.stamped = True
    if rank := told.get("rank"):
        rank2 = told.get("rank2")
        head.rank = f"rank{rank2}" if rank2 else rank.strip()
    head.container = told.get("container") or head.container
    if pid := told.get("pid"):
        head.pid = int(pid)
    if file := told.get("file") or told.get("file2"):
        head.logger = file
    if level := told.get("level"):
        head.level = level
    if form.speaker is not None:
        head.speaker = head.speaker or form.speaker
        head.stamped = True
    elif form.pattern.pattern.startswith(_MONTH) or "ts" in told:
        head.stamped = True
