"""The options of `kvprobe run`, by group; what they mean is in the contract of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_OUT = Path("runs")


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of `run` but those that every command takes."""
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="a workload file, or the name of a bundled one: shared_prefix"
    )
    _add_target(parser)
    _add_load(parser)
    _add_scale(parser)
    _add_gates(parser)
    _add_evidence(parser)
    parser.add_argument(
        "--out", metavar="DIR", help=f"parent folder of the run directory (default: {DEFAULT_OUT})"
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument_group("target")
    target.add_argument(
        "--target", metavar="URL", help="base URL of an OpenAI-compatible server (default: the bundled one)"
    )
    target.add_argument(
        "--model", metavar="NAME", help="model to ask for (default: the only one that is served)"
    )
    target.add_argument("--metrics", metavar="URL", help="Prometheus page (default: TARGET/metrics)")
    target.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    target.add_argument(
        "--insecure", action="store_true", help="do not verify TLS certificates (recorded in the report)"
    )
    target.add_argument(
        "--i-own-this-target", action="store_true", help="load a target that is not this machine"
    )
    target.add_argument(
        "--yes", action="store_true", help="do not ask again, for a target whose name says production"
    )
    target.add_argument("--serve-args", metavar="ARGS", help="options for the bundled server, as one string")


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--set",
        metavar="a.b=c",
        action="append",
        default=[],
        type=_assignment,
        help="override one key of the workload (repeatable)",
    )
    arrival = load.add_mutually_exclusive_group()
    arrival.add_argument("--users", metavar="N", help="closed loop with N users")
    arrival.add_argument("--rate", metavar="R", help="open loop with R requests a second, e.g. 4")
    load.add_argument("--duration", metavar="60s", help="stop issuing requests after this time")


def _add_scale(parser: argparse.ArgumentParser) -> None:
    scale = parser.add_argument_group("scale")
    scale.add_argument("--processes", metavar="N", help="load worker processes on this machine (default: 1)")
    role = scale.add_mutually_exclusive_group()
    role.add_argument("--master", action="store_true", help="lead workers on other machines")
    role.add_argument("--worker", metavar="HOST", help="send for the master on HOST[:PORT]")
    scale.add_argument(
        "--bind", metavar="ADDRESS[:PORT]", help="where the master listens (default: 127.0.0.1:5557)"
    )
    scale.add_argument(
        "--expect-workers",
        metavar="N",
        help="workers on other machines that the master waits for (default: 1)",
    )
    scale.add_argument("--web", action="store_true", help="show Locust's page while the load runs")


def _add_gates(parser: argparse.ArgumentParser) -> None:
    gates = parser.add_argument_group("gates")
    gates.add_argument(
        "--threshold",
        metavar="'ttft.p95 < 800ms'",
        action="append",
        default=[],
        help="what must hold at the end, else exit code 99 (repeatable)",
    )
    gates.add_argument(
        "--abort",
        metavar="'error_rate > 50%'",
        action="append",
        default=[],
        help="what stops the load at once with exit code 5 (repeatable)",
    )
    gates.add_argument("--junit", metavar="FILE", help="write the thresholds as a JUnit file")


def _add_evidence(parser: argparse.ArgumentParser) -> None:
    evidence = parser.add_argument_group("evidence")
    evidence.add_argument(
        "--log",
        metavar="FILE",
        action="append",
        default=[],
        help="the server's log, read beside the run (repeatable)",
    )
    evidence.add_argument(
        "--investigate",
        action="store_true",
        help="after the load, run small experiments that separate the causes that are left",
    )
    evidence.add_argument(
        "--serve-metrics", metavar="PORT", help="serve this run's own metrics on this loopback port"
    )


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"`{text}` is no assignment: write it as prompt.families=30")
    return key.strip(), value
