"""A plan as one page that opens offline: no script, no origin, every text through the sanitiser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvprobe.plan.document import PlanDocument
from kvprobe.report import plan_text as words
from kvprobe.report.sanitize import html as safe
from kvprobe.summary.units import size, whole

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
h1, h2, p, li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; overflow-wrap: break-word; }
td:first-child { min-width: 7rem; } td:last-child { max-width: 30rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.sum td { font-weight: 600; border-top: 1px solid; }
pre { font: 13px/1.45 ui-monospace, monospace; overflow-x: auto; border: 1px solid; padding: .6rem; }
.bar { display: block; height: .8rem; background: #3b7dd8; } .sum .bar { background: #2e9d57; }
.verdict { font-size: 1.15rem; font-weight: 600; } .note { opacity: .75; }
.yes { color: #2e9d57; } .no { color: #d33; } .open { color: #b57900; }
@media (max-width: 44rem) {
  body { margin: 1rem auto; } ul { padding-left: 1.2rem; } .bars { display: none; }
  .what td:last-child { min-width: 12rem; }
}
@media print { body { margin: 0; } pre { white-space: pre-wrap; } }
"""


def render_plan_html(plan: PlanDocument) -> str:
    """The whole page."""
    plans = plan.models or [plan]
    title = safe("kvprobe plan: " + ", ".join(p.model.name for p in plans))
    comparison = _comparison(plans) if len(plans) > 1 else ""
    body = comparison + "\n".join(_section(each) for each in plans)
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
{body}
</main>
</body>
</html>
"""


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), style: str = ""
) -> str:
    """Cells are HTML already; columns in `numbers` are set to the right. A wide one scrolls by itself."""
    kind = f' class="{style}"' if style else ""

    def cell(tag: str, column: int, text: str) -> str:
        return f'<{tag} class="n">{text}</{tag}>' if column in numbers else f"<{tag}>{text}</{tag}>"

    top = "".join(cell("th", i, safe(text)) for i, text in enumerate(head))
    body = "\n".join("<tr>" + "".join(cell("td", i, c) for i, c in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}>\n<tr>{top}</tr>\n{body}\n</table></div>'


def _section(plan: PlanDocument) -> str:
    style = {True: "yes", False: "no", None: "open"}[plan.fits]
    parts = [
        f"<h2>{safe(words.headline(plan))}</h2>",
        f'<p class="verdict {style}">{safe(plan.verdict)}</p>',
        _warnings(plan),
        "<h2>Budget of one GPU</h2>",
        _budget(plan),
        "<h2>Cache</h2>",
        _list([words.token_line(plan), *words.part_lines(plan), *words.pool_lines(plan)]),
        _concurrency(plan),
        _flags(plan),
        "<h2>What if</h2>",
        _what_if(plan),
        _ladder(plan),
        "<h2>Assumed</h2>",
        _list(plan.assumptions),
    ]
    return "\n".join(part for part in parts if part)


def _list(lines: Iterable[str]) -> str:
    items = "\n".join(f"<li>{safe(line)}</li>" for line in lines)
    return f"<ul>\n{items}\n</ul>" if items else ""


def _warnings(plan: PlanDocument) -> str:
    lines = ["".join(words.warning_line(w.text, w.fix)) for w in plan.warnings]
    return f"<h2>Warnings</h2>\n{_list(lines)}" if lines else ""


def _budget(plan: PlanDocument) -> str:
    rows = []
    for label, amount, share, source in words.budget_rows(plan.budget, plan.reasons):
        bar = f'<span class="bar" style="width:{min(1.0, share) * 14:.2f}rem"></span>'
        kind = ' class="sum"' if label.startswith("=") else ""
        rows.append(
            f'<tr{kind}><td>{safe(label)}</td><td class="n">{safe(amount)}</td><td class="bars">{bar}</td>'
            f'<td class="note">{safe(source)}</td></tr>'
        )
    return (
        '<div class="scroll"><table>\n'
        + "\n".join(rows)
        + f'\n</table></div>\n<p class="note">{safe(plan.budget.rule)}</p>'
    )


def _concurrency(plan: PlanDocument) -> str:
    rows = [[safe(cell) for cell in row] for row in words.length_rows(plan)]
    spread = plan.concurrency.distribution
    parts = [
        "<h2>At once</h2>",
        _table(("length", "tokens", "requests"), rows, numbers=(1, 2)) if rows else "",
    ]
    if spread is not None:
        parts.append(f"<p>{safe(words.safe_line(spread))}</p>")
        points = [[whole(p.requests), f"{100 * p.probability:.2f} %"] for p in spread.fits]
        parts.append(_table(("requests", "chance that they fit"), points, numbers=(0, 1)))
        parts.append(f'<p class="note">{safe(spread.method)}</p>')
    if plan.concurrency.binds:
        parts.append(f"<p>What binds: {safe(plan.concurrency.binds)}</p>")
    return "\n".join(parts)


def _flags(plan: PlanDocument) -> str:
    flags = plan.flags
    if flags.note is not None:
        return f"<h2>Flags</h2>\n<p>{safe(flags.note)}</p>"
    why = [
        [safe(f.name), safe(f.value if f.value is not None else "on"), safe(f.why)] for f in flags.recommended
    ]
    left = [f"{f.name}: {f.why}" for f in flags.left_out]
    diff = [
        [safe(x.name), safe(x.running or "-"), safe(x.recommended or "on"), safe(x.change)]
        for x in flags.diff
    ]
    parts = [
        "<h2>Flags</h2>",
        f"<pre>{_lines(flags.shell)}</pre>",
        _table(("flag", "value", "the number it comes from"), why),
        f"<pre>{_lines(flags.yaml)}</pre>",
        _table(("flag", "running", "recommended", ""), diff) if diff else "",
        _list(left),
    ]
    return "\n".join(part for part in parts if part)


def _lines(text: str) -> str:
    return "\n".join(safe(line) for line in text.splitlines())


def _what_if(plan: PlanDocument) -> str:
    rows = [
        [*(safe(cell) for cell in words.what_if_cells(row)), safe(row.reason or row.note or "")]
        for row in plan.what_if
    ]
    head = ("change", "pool tokens", "p50", "p95", "max", "safe", "")
    return _table(head, rows, numbers=(1, 2, 3, 4, 5), style="what")


def _ladder(plan: PlanDocument) -> str:
    if not plan.ladder:
        return ""
    rows = [
        [
            safe(r.setting),
            safe(size(r.kv_bytes)),
            "-" if r.max_num_seqs is None else whole(r.max_num_seqs),
            safe(r.check),
        ]
        for r in plan.ladder
    ]
    return "<h2>The ladder</h2>\n" + _table(
        ("setting", "cache", "at once", "then"), rows, numbers=(1, 2), style="what"
    )


def _comparison(plans: Sequence[PlanDocument]) -> str:
    rows = [
        [
            safe(p.model.name),
            safe(size(p.kv.bytes_per_token_per_gpu)),
            safe(words.amount(p.budget.kv, words.unit_of(p.budget))),
            safe(words.count(p.pool.tokens, p.pool.tokens_range)),
            {True: "yes", False: "no", None: "open"}[p.fits],
        ]
        for p in plans
    ]
    return (
        _table(("model", "a token", "KV cache", "tokens", "fits"), rows, numbers=(1, 2, 3), style="what")
        + "\n"
    )
