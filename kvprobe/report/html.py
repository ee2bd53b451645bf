"""report.html: the report of a run as one page that opens offline.

For now the page carries the text report as it stands on a terminal; charts come into this room. It
loads nothing: the content security policy allows no origin, no script and no form.
"""

from __future__ import annotations

from kvprobe.diagnose.model import Diagnosis
from kvprobe.report import sanitize
from kvprobe.report.terminal import render_text
from kvprobe.summary.build import Summary

PAGE_WIDTH = 110
"""Columns of the text on the page."""

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
pre { font: 13px/1.45 ui-monospace, monospace; white-space: pre; overflow-x: auto; }
@media print { body { margin: 0; } pre { white-space: pre-wrap; } }
"""


def render_html(summary: Summary, diagnosis: Diagnosis, banner: str | None) -> str:
    """The whole page. Every text of the run passes through the sanitiser."""
    title = sanitize.html(f"kvprobe: {summary.workload or 'run'}: {diagnosis.primary}")
    text = render_text(summary, diagnosis, banner, width=PAGE_WIDTH)
    body = "\n".join(sanitize.html(line) for line in text.splitlines())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<pre>{body}</pre>
</main>
</body>
</html>
"""
