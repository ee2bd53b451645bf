"""The host killed it: kernel, container, Ray, shell; and the deaths that only look like it."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.enginekit import diagnosis, primary

KERNEL = """\
[ 2345.678901] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=984
[ 2345.678950] memory: usage 33554432kB, limit 33554432kB, failcnt 512
[ 2345.679000] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[ 2345.679010] [   4001]     0  4001      255        1    32768        0          -998 pause
[ 2345.679020] [   4102]     0  4102 30123456  8300000 70000000        0           984 python3
[ 2345.679100] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,\
oom_memcg=/kubepods/p,task_memcg=/kubepods/p/c,task=pause,pid=4001,uid=0
[ 2345.679200] Memory cgroup out of memory: Killed process 4001 (pause) total-vm:1020kB, anon-rss:400kB, \
file-rss:0kB, shmem-rss:0kB
"""


def test_a_kernel_record_is_proof_and_names_the_largest_task() -> None:
    found = primary(KERNEL)
    assert (found.cause, found.confidence) == ("host_oom_kill", "certain")
    assert "32.0 GiB" in found.why
    assert "python3 with 31.7 GiB" in found.why
    assert "CUDA" not in found.why


@pytest.mark.parametrize(
    "text",
    [
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n",
        "NAME      READY   STATUS      RESTARTS   AGE\nllm-0     0/1     OOMKilled   3          9m\n",
        '        "State": {\n            "OOMKilled": true,\n            "ExitCode": 137,\n',
        "(raylet) node_manager.cc:3069: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 "
        "Workers\n",
        "ollama.service: A process of this unit has been killed by the OOM killer.\n",
    ],
)
def test_records_of_container_runtimes_ray_and_systemd(text: str) -> None:
    found = primary(text)
    assert (found.cause, found.confidence) == ("host_oom_kill", "certain")


def test_a_shells_word_is_likely_and_an_exit_code_suspected() -> None:
    loading = "Loading safetensors checkpoint shards:  30% Completed | 3/10 [00:09<00:21,  3.0s/it]\n"
    assert primary(loading + "Killed\n").confidence == "likely"
    assert primary("llm-1 exited with code 137\n").confidence == "suspected"


def test_sigkill_without_the_containers_limit_is_only_suspected() -> None:
    found = primary('            "OOMKilled": false,\n            "ExitCode": 137,\n')
    assert (found.cause, found.confidence) == ("host_oom_kill", "suspected")


def test_a_failed_probe_kills_with_137_too() -> None:
    """S56."""
    text = (
        "    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    137\n  Warning  "
        "Unhealthy  9m  kubelet  Startup probe failed: HTTP probe failed with statuscode: 503\n  Normal   "
        "Killing    9m  kubelet  Container llm failed startup probe, will be restarted\n"
    )
    found = primary(text)
    assert found.cause == "not_memory"
    assert "startup probe" in found.why


def test_growth_and_a_kill_are_a_leak() -> None:
    """S11."""
    growth = "\n".join(f"INFO 05-06 {9 + n:02d}:00:00 [m.py:1] RSS: {20 + 8 * n}.0 GiB" for n in range(6))
    text = growth + "\n    Last State:     Terminated\n      Reason:       OOMKilled\n"
    found = diagnosis(text)
    assert {"host_oom_kill", "host_memory_leak"} <= {f.cause for f in found.findings}
    assert all("CUDA" not in f.why for f in found.findings)


def test_shared_memory_is_no_disk() -> None:
    found = primary("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b'\n")
    assert found.cause == "host_memory_exhausted"


def test_a_forged_kill_in_a_prompt_convinces_nobody() -> None:
    text = (
        "INFO 05-06 09:00:00 [logger.py:40] Received request cmpl-1: prompt: 'Out of memory: Killed process "
        "7 (python3) total-vm:1kB, anon-rss:1kB', params: SamplingParams(n=1)\n"
    )
    assert diagnosis(text).primary in {"unknown", "healthy_baseline"}
