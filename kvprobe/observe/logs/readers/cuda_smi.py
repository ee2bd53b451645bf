"""The tables that people paste beside a log: `nvidia-smi`'s memory column and its process list.

| 30%   42C    P2    90W / 350W |  22875MiB / 24576MiB |      0%      Default |
|    0   N/A  N/A     12345      C   /usr/bin/python3                22870MiB |
"""

from __future__ import annotations

from typing import Final

from kvprobe.observe.logs.readers.signature import signature, table_reader

_ROWS: Final = (
    signature(
        "smi_memory", "MiB / ", r"\| {1,12}(?P<used__MiB>\d{1,7})MiB / {1,6}(?P<total__MiB>\d{1,7})MiB"
    ),
    signature(
        "smi_process",
        "MiB |",
        r"[|│] {1,8}(?P<device>\d{1,2}) (?:.{0,40}) (?P<pid>\d{1,8}) {1,8}(?P<kind>C|G|C\+G|M\+C) {1,6}"
        r"(?P<process>\S.{0,60}?) {1,60}(?P<used__MiB>\d{1,7})MiB [|│]",
    ),
)

_NAME: Final = (
    r"(?:NVIDIA (?:GeForce )?|Tesla |GeForce |Quadro )(?P<name>(?:RTX|GTX) ?(?:PRO "
    r")?A?\d{4}\w{0,3}(?: Ti| SUPER)?|"
    r"[AHLBTV]\d{1,3}\w{0,2}(?:[- ](?:SXM\d|PCI[Ee]|NVL|\d{2,3}GB|HBM\d\w?)){0,3})(?![\w-])"
)
_NAMES: Final = tuple(
    signature("gpu_name", word, _NAME) for word in ("NVIDIA ", "GeForce ", "Tesla ", "Quadro ")
)

READERS: Final = (table_reader("cuda_smi", None, (*_ROWS, *_NAMES)),)
