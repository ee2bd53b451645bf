"""The rules and the dashboard against a real Prometheus that scrapes the real reference server."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Server, start_server

__all__ = ["start_server"]
DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_S = 180.0
RULES = DEPLOY / "prometheus" / "kvprobe.rules.yml"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None, reason="install prometheus"
)


def builder() -> Any:
    spec = importlib.util.spec_from_file_location("build", DEPLOY / "grafana" / "build_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expressions() -> dict[str, str]:
    """Panel title and letter -> PromQL with the variables filled in as `All` does."""
    document = json.loads((DEPLOY / "grafana" / "kvprobe-kv-cache.json").read_text())
    found = {}
    for panel in document["panels"]:
        for item in panel["targets"]:
            query = item["expr"].replace("$job", ".*").replace("$instance", ".*")
            found[f"{panel['title']}/{item['refId']}"] = query
    return found


def promtool(*argv: str) -> str:
    done = subprocess.run(["promtool", *argv], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dashboard_is_what_its_script_writes() -> None:
    assert (DEPLOY / "grafana" / "kvprobe-kv-cache.json").read_text() == builder().text()


def test_no_two_panels_lie_over_each_other() -> None:
    cells = set()
    for panel in builder().dashboard()["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in cells
                cells.add((x, y))


def test_every_alert_says_what_and_where_to_look() -> None:
    text = RULES.read_text()
    alerts = re.split(r"- alert: ", text)[1:]
    assert len(alerts) >= 8
    for alert in alerts:
        assert "summary:" in alert
        assert "look_first:" in alert
        assert "severity:" in alert


@needs_prometheus
def test_promtool_accepts_rules_and_configuration_and_their_unit_tests_pass() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    promtool("test", "rules", str(DEPLOY / "prometheus" / "kvprobe.rules.test.yml"))


@needs_prometheus
def test_promtool_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    groups = [
        {"name": f"g{i}", "rules": [{"record": f"x{i}", "expr": query}]}
        for i, query in enumerate(expressions().values())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": groups}))  # JSON is YAML
    assert f"{len(groups)} rules found" in promtool("check", "rules", str(path))


def hurried(text: str) -> str:
    """The rules with seconds in place of minutes, so that a test sees them act (hours stay hours)."""
    text = re.sub(r"\[2m\]", "[4s]", text)
    return re.sub(r"for: (2m|5m|10m|15m|1m|15s)", "for: 2s", text)


@contextlib.contextmanager
def prometheus(folder: Path, targets: dict[str, str]) -> Iterator[str]:
    """A real Prometheus that scrapes twice a second and evaluates once a second. Yields its URL."""
    (folder / "rules.yml").write_text(hurried(RULES.read_text()))
    jobs = [{"job_name": job, "static_configs": [{"targets": [t]}]} for job, t in targets.items()]
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: ready(url), "prometheus to be ready")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=PATIENCE_S).status_code == 200
    except httpx.HTTPError:
        return False


def wait_for(happened: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := happened():
            return found
        time.sleep(0.3)
    raise AssertionError(f"waited {within_s:g} s for {what}")


def ask(url: str, query: str) -> list[Any]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=PATIENCE_S).json()
    assert answer["status"] == "success", answer
    result = answer["data"]["result"]
    assert isinstance(result, list)
    return [r for r in result if r["value"][1] != "NaN"]


def firing(url: str) -> set[str]:
    return {r["metric"]["alertname"] for r in ask(url, 'ALERTS{alertstate="firing"}')}


@contextlib.contextmanager
def loaded(server: Server, words: int, tokens: int, users: int) -> Iterator[None]:
    """So many users that ask one chat after the other until the block is left."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "river stone " * words}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    over = threading.Event()

    def user() -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not over.is_set():
                client.post(f"{server.url}/v1/chat/completions", json=body)

    threads = [threading.Thread(target=user) for _ in range(users)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)


OF_THE_POOL = {"KvPoolPressure", "KvPreemptions", "KvBlocksHeldWhileIdle", "KvQueueWithRoom"}
PANELS_OF_OTHERS = {"Load test: requests", "Load test: is the client late?"}


@needs_prometheus
def test_every_panel_has_data_and_nothing_fires_on_a_healthy_server(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    server = start_server("--vllm-metric-names")
    wanted = {k: q for k, q in expressions().items() if k.partition("/")[0] not in PANELS_OF_OTHERS}
    seen: set[str] = set()
    with prometheus(tmp_path, {"llm": server.url.removeprefix("http://")}) as url, loaded(server, 30, 40, 2):

        def all_seen() -> bool:
            seen.update(k for k, q in wanted.items() if k not in seen and ask(url, q))
            return seen == set(wanted)

        wait_for(all_seen, "every panel to have data")
        assert len(ask(url, "kv:requests_running:count")) == 1
        assert not firing(url) & OF_THE_POOL
        # With seconds for minutes, a machine that stalls for some looks like a server that does: it passes.
        wait_for(lambda: not firing(url), "no alert to fire")


@needs_prometheus
def test_alerts_fire_on_a_pool_that_is_too_small(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    """A pool of some 1,000 tokens and 16 users whose requests hold up to 250: most of them wait."""
    server = start_server("--kv-memory", "4MiB", "--max-model-len", "900", "--no-prefix-caching")
    with (
        prometheus(tmp_path, {"llm": server.url.removeprefix("http://")}) as url,
        loaded(server, 10, 120, 16),
    ):

        def pressure_alone() -> bool:
            """Before the pool is full for the first time, the queue may well stand beside room."""
            return firing(url) & {"KvPoolPressure", "KvQueueWithRoom"} == {"KvPoolPressure"}

        wait_for(pressure_alone, "KvPoolPressure to fire, and KvQueueWithRoom not")


@needs_prometheus
def test_an_alert_fires_on_a_server_that_is_gone(tmp_path: Path) -> None:
    with prometheus(tmp_path, {"llm": "127.0.0.1:9"}) as url:
        wait_for(lambda: "KvTargetDown" in firing(url), "KvTargetDown to fire")
