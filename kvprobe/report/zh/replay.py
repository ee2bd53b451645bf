"""Words of a simulated trace, in Chinese."""

from __future__ import annotations

from typing import Final

REPLAY: Final[dict[str, str]] = {
    "Above how much of the pool is held, below how many requests run and wait; dots: preemptions.": (
        "上图：池的占用；下图：运行与等待的请求数；圆点：抢占。"
    ),
    "At {at}: {who} wanted {n} blocks, {left} were left, {running} ran": (
        "{at}：{who}需要 {n} 个块，只剩 {left} 个，正在运行 {running} 个请求"
    ),
    "Nothing here was measured: a trace went through a model of a server.": (
        "本页没有实测数据：是把请求轨迹送入服务端模型模拟所得。"
    ),
    "Replay: {name}": "轨迹回放：{name}",
    "Room was refused {n} times, first at {at}.": "因空间不足被拒 {n} 次，首次在 {at}。",
    "Step time: {source}. How many run at once follows from it.": (
        "每步耗时来源：{source}。同时运行的请求数由它决定。"
    ),
    "Sweep of {name}": "扫描 {name}",
    "Sweeps and the smallest pool": "扫描与最小的池",
    "The first {n} of {all} requests of the trace through this pool, simulated": (
        "轨迹 {all} 个请求中的前 {n} 个，在该池上的模拟结果"
    ),
    "{n} requests of these lengths, all waiting from the start, simulated": (
        "按该长度分布抽取 {n} 个请求，从一开始就全部排队，模拟结果"
    ),
    "The heaviest requests": "占用最多的请求",
    "The pool never ran out: no request was refused room.": "池从未耗尽：没有请求因空间不足被拒。",
    "The replay over time": "回放随时间的变化",
    "Waits, as simulated": "模拟得到的等待时间",
    "What was assumed": "所作假设",
    "Who held most": "占用最多者",
    "a running request": "一个正在运行的请求",
    "a waiting request": "一个等待中的请求",
    "at": "时刻",
    "at once, mean": "同时运行（平均）",
    "at once, peak": "同时运行（峰值）",
    "every request served": "全部请求均已完成",
    "failed for lack of room": "因空间不足失败",
    "line": "行",
    "max": "最大",
    "pool in use, peak": "池占用（峰值）",
    "pool, tokens": "池容量（token）",
    "preempted requests": "被抢占的请求",
    "queue p95": "排队 p95",
    "queue, peak": "排队（峰值）",
    "refused": "拒绝",
    "refused as too long": "因过长被拒",
    "requests that run and wait": "运行与等待的请求数",
    "session": "会话",
    "share of byte-seconds": "字节·秒占比",
    "simulated, not measured": "模拟值，非实测",
    "slots held for each token in them": "每个 token 平均占用的槽位",
    "smallest pool for {limit}": "满足 {limit} 的最小的池",
    "step time": "每步耗时",
    "tokens computed again": "重新计算的 token",
    "tokens in": "输入 token",
    "tokens out": "输出 token",
    "trace": "请求轨迹",
    "{mean} on average, as simulated": "平均 {mean}（模拟）",
    "{name}: replay of a trace, simulated": "{name}：请求轨迹的模拟回放",
    "{n} blocks": "{n} 个块",
    "{n} of {all} requests not served": "{all} 个请求中有 {n} 个未完成",
    "{part} of requests ({n}) hold {share} of all byte-seconds.": (
        "{part} 的请求（{n} 个）占全部字节·秒的 {share}。"
    ),
}
