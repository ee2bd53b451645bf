"""Assumptions about the machine: what the run's driver said, else why it is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvprobe.report.charts_capacity import number
from kvprobe.report.prelaunch.view import Prelaunch
from kvprobe.summary import activity
from kvprobe.summary.units import figures, whole

Row = tuple[str, str | None, str]
UNKNOWN = "nobody said"


def heads(view: Prelaunch) -> list[Row]:
    """KV heads and the elements of each: of the plan, else of the model that the run's server told."""
    w = view.w
    told = _fact(view, "model_config")
    config = told if isinstance(told, Mapping) else {}
    rows: list[Row] = []
    for label, path, key in (
        (w("KV heads"), "model.kv_heads", "num_key_value_heads"),
        (w("head dimension"), "model.head_dim", "head_dim"),
    ):
        value, served = view.number(path), number(config.get(key))
        if value is not None:
            rows.append((label, whole(value), "config"))
        elif served is not None:
            rows.append((label, whole(served), "measured"))
        else:
            rows.append((label, w("not known, or not one number"), UNKNOWN))
    return rows


def machine(view: Prelaunch) -> list[Row]:
    """GPUs, driver, power cap and interconnect."""
    w, gpus = view.w, _gpus(view)
    names = sorted({str(g["name"]) for g in gpus if g.get("name")})
    drivers = sorted({str(g["driver"]) for g in gpus if g.get("driver")})
    caps = _power_caps(view)
    ranks = (view.number("tp") or 1) * (view.number("pp") or 1)
    link = (w("none: one GPU"), "formula") if ranks == 1 else (w("not known"), UNKNOWN)
    return [
        (w("GPUs of a replica"), whole(ranks), "formula"),
        (w("GPUs seen in the run"), _join(names, len(gpus)) or w("not known"), _source(names)),
        (w("driver"), ", ".join(drivers) or w("not known"), _source(drivers)),
        (w("power cap"), ", ".join(caps) or w("not known"), _source(caps)),
        (w("interconnect"), *link),
    ]


def _source(found: list[str]) -> str:
    return "measured" if found else UNKNOWN


def _join(names: list[str], count: int) -> str:
    return f"{count} x {', '.join(names)}" if names else ""


def _fact(view: Prelaunch, name: str) -> Any:
    run = view.run if not view.unlike else None
    if run is None or run.data is None:
        return None
    return next((f.value for f in reversed(run.data.facts) if f.name == name), None)


def _gpus(view: Prelaunch) -> list[Mapping[str, Any]]:
    found = _fact(view, "nvml")
    return [g for g in found if isinstance(g, Mapping)] if isinstance(found, list) else []


def _power_caps(view: Prelaunch) -> list[str]:
    run = view.run if not view.unlike else None
    if run is None or run.data is None:
        return []
    watts = {v for _, v in activity.readings(run.data.samples, "gpu.power_limit_w")}
    return [f"{figures(v)} W" for v in sorted(watts)]
