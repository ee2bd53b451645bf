"""Writes `kvprobe-kv-cache.json`: the dashboard, panel by panel, over the names of kvprobe.rules.yml.

    python deploy/grafana/build_dashboard.py

The JSON is kept beside it, so that nobody needs this script to use the dashboard; a test says when the
two have parted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WHERE = 'job=~"$job", instance=~"$instance"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RED_LINE, IDLE_LINE = 0.9, 0.3
COLUMNS = 24


def target(expression: str, legend: str) -> dict[str, Any]:
    return {"datasource": DATASOURCE, "expr": expression.replace("WHERE", WHERE), "legendFormat": legend}


def panel(
    title: str,
    unit: str,
    targets: list[dict[str, Any]],
    *,
    about: str,
    kind: str = "timeseries",
    **defaults: Any,
) -> dict[str, Any]:
    """One panel; place and id are given by `laid_out`."""
    for letter, item in zip("ABCDEFGH", targets, strict=False):
        item["refId"] = letter
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, **defaults}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


def lines(*steps: tuple[float | None, str]) -> dict[str, Any]:
    """Threshold lines across a graph."""
    return {
        "thresholds": {"mode": "absolute", "steps": [{"value": v, "color": c} for v, c in steps]},
        "custom": {"thresholdsStyle": {"mode": "line"}},
    }


def quantile(q: float, name: str) -> str:
    return f"histogram_quantile({q}, {name}{{WHERE}})"


def mean_of(name: str) -> str:
    """Mean of a histogram over the window: the reference server's name or vLLM's."""
    both = "sum by (job, instance) (rate(kvprobe:{0}[2m]) or rate(vllm:{0}[2m]))"
    above, below = both.format(f"{name}_sum{{WHERE}}"), both.format(f"{name}_count{{WHERE}}")
    return f"{above} / ({below} > 0)"


def panels() -> list[dict[str, Any]]:
    level = lines((None, "green"), (IDLE_LINE, "blue"), (RED_LINE, "red"))
    return [
        panel(
            "KV water level",
            "percentunit",
            [
                target("kv:usage:ratio{WHERE}", "{{instance}}"),
                target("kv:usage_fullest:ratio{WHERE}", "{{instance}}, fullest engine"),
            ],
            about="Red at 90 %, idle below 30 %. Full is no fault by itself: full while requests wait is.",
            max=1,
            **level,
        ),
        panel(
            "Requests running and waiting",
            "short",
            [
                target("kv:requests_running:count{WHERE}", "running {{instance}}"),
                target("kv:requests_waiting:count{WHERE}", "waiting {{instance}}"),
            ],
            about="Waiting beside a full pool is pool pressure; waiting beside a free pool is another limit.",
        ),
        panel(
            "Preemptions",
            "cps",
            [target("kv:preemptions:rate{WHERE}", "{{instance}}")],
            about="Each one computes a prefill again. Engines without the counter have no line here.",
        ),
        panel(
            "Prefix hits",
            "percentunit",
            [target("kv:prefix_hits:ratio{WHERE}", "{{instance}}")],
            about="Prompt tokens from the prefix cache over those asked for; counter deltas over 2 minutes.",
            max=1,
        ),
        panel(
            "Time to first token",
            "s",
            [
                target(quantile(q, "kv:ttft_bucket:rate"), f"p{100 * q:g} {{{{instance}}}}")
                for q in (0.5, 0.95, 0.99)
            ],
            about="From the server's buckets: no finer than their edges. kvprobe run has the client's view.",
        ),
        panel(
            "Where the first token's time goes",
            "s",
            [
                target(mean_of("request_queue_time_seconds"), "queue {{instance}}"),
                target(mean_of("request_prefill_time_seconds"), "prefill {{instance}}"),
            ],
            about="The server's mean times. Queue grows: pool or limit. Prefill grows: lost reuse.",
            custom={"fillOpacity": 30, "stacking": {"mode": "normal"}},
        ),
        panel(
            "Between tokens",
            "s",
            [
                target(quantile(q, "kv:inter_token_bucket:rate"), f"p{100 * q:g} {{{{instance}}}}")
                for q in (0.5, 0.99)
            ],
            about="By the server's buckets. p99 rises when long prefills share the steps.",
        ),
        panel(
            "Output",
            "short",
            [target("kv:generation_tokens:rate{WHERE}", "tokens/s {{instance}}")],
            about="Generated tokens a second.",
        ),
        panel(
            "Blocks of the reference server",
            "short",
            [
                target(f"sum by (instance) (kvprobe:kv_blocks_{what}{{WHERE}})", f"{what} {{{{instance}}}}")
                for what in ("used", "cached", "free")
            ],
            about="Only the bundled server tells these apart.",
            custom={"fillOpacity": 30, "stacking": {"mode": "normal"}},
        ),
        panel(
            "Load test: requests",
            "short",
            [
                target("kvprobe_run_requests_active{WHERE}", "active"),
                target("rate(kvprobe_run_requests_ok_total{WHERE}[2m])", "ok/s"),
                target("rate(kvprobe_run_requests_failed_total{WHERE}[2m])", "failed/s"),
            ],
            about="From kvprobe run --serve-metrics, while it runs.",
        ),
        panel(
            "Load test: is the client late?",
            "s",
            [target("kvprobe_run_loop_lag_seconds{WHERE}", "loop lag")],
            about="Above 10 ms the client distorts what it measures.",
            **lines((None, "green"), (0.01, "red")),
        ),
    ]


def laid_out(found: list[dict[str, Any]], per_row: int = 2, height: int = 8) -> list[dict[str, Any]]:
    width = COLUMNS // per_row
    for number, item in enumerate(found):
        item["id"] = number + 1
        item["gridPos"] = {
            "x": number % per_row * width,
            "y": number // per_row * height,
            "w": width,
            "h": height,
        }
    return found


def variable(name: str, expression: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": expression, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "allValue": ".*",
    }


def dashboard() -> dict[str, Any]:
    return {
        "title": "kvprobe: KV cache",
        "uid": "kvprobe-kv-cache",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "tags": ["llm", "kv-cache", "kvprobe"],
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "10s",
        "templating": {
            "list": [
                {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"},
                variable("job", "label_values(up, job)"),
                variable("instance", 'label_values(up{job=~"$job"}, instance)'),
            ]
        },
        "panels": laid_out(panels()),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "kvprobe-kv-cache.json").write_text(text(), encoding="utf-8")
