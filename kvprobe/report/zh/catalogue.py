"""Words of the pages in Chinese, by their English: the parts of each page together."""

from __future__ import annotations

from typing import Final

from kvprobe.report.zh.charts import CHARTS
from kvprobe.report.zh.prelaunch import PRELAUNCH
from kvprobe.report.zh.prelaunch_more import PRELAUNCH_MORE
from kvprobe.report.zh.prelaunch_verdict import VERDICT
from kvprobe.report.zh.replay import REPLAY
from kvprobe.report.zh.run import RUN

ZH: Final[dict[str, str]] = {**CHARTS, **PRELAUNCH, **PRELAUNCH_MORE, **VERDICT, **REPLAY, **RUN}
