"""Sentences of a sweep, in Chinese: the limit, the knee, each step's verdict."""

from __future__ import annotations

from typing import Final

SWEEP_SENTENCES: Final[dict[str, str]] = {
    "Sustainable {} {} [{}, {}); decode {} as long, queue grows.": "可持续 {} {}，区间 [{}, {})；解码耗时变为 {}，"
    "排队增长。",
    "Sustainable at least {} {} [{}, not reached): no step was proved to be too much; sweep higher.": "至少可持续 {} "
    "{}，区间 [{}, 未触及上限)：没有一档被证明过高；请扫描更高的负载。",
    "Nothing tried was sustained: the limit lies below {} {}.": "所试负载均不可持续：上限低于 {} {}。",
    "No step could be decided: nothing is said about the highest sustainable load.": "没有一档可以判定：无法说明"
    "最高可持续负载。",
    "No knee can be told: fewer than two valid steps.": "无法判断拐点：有效档位不足两个。",
    "Offered {} > served {}: backlog grows {} req/s (slope {} [{}, {}])": "施加 {} > 完成 {}：积压以 {} 请求/s 增长"
    "（斜率 {} [{}, {}]）",
    "Offered {} > served {}: backlog grows {} req/s (slope {} [{}, {}]).": "施加 {} > 完成 {}：积压以 {} 请求/s 增长"
    "（斜率 {} [{}, {}]）。",
    "Of a TTFT of {}, the server's queue is {} so far.": "在 {} 的 TTFT 中，服务端排队已占 {}。",
    "TTFT is queueing ({}), not prefill.": "TTFT 是排队（{}），而不是预填充。",
    "TTFT holds the wait in the queue (the server exports no queue time).": "TTFT 中含排队等待（服务端没有导出排队时间）。",
    "Percentiles at this rate depend on run length: do not quote.": "该负载下的分位数取决于运行时长：请勿引用。",
    "backlog {} req/s [{}, {}]: not growing": "积压 {} 请求/s [{}, {}]：没有增长",
    "backlog {} req/s [{}, {}]: a growth up to {} req/s is not ruled out in {}": "积压 {0} 请求/s [{1}, {2}]：在 {4} 内"
    "不能排除至多 {3} 请求/s 的增长",
    "requests in flight rise by {}/s, but so does what is served: {} are too short to tell a backlog from a load "
    "that settles": "在途请求以 {}/s 增加，但完成量也在增加：{} 太短，分不清是积压还是负载尚未稳定",
    "requests in flight rise by {}/s, but none was done yet: {} are too short to tell a backlog from a load that "
    "settles": "在途请求以 {}/s 增加，但还没有请求完成：{} 太短，分不清是积压还是负载尚未稳定",
    "requests in flight rise by {}/s, but up to {} req/s may be done: {} are too short to tell a backlog from a "
    "bunch of arrivals": "在途请求以 {}/s 增加，但完成量可达 {} 请求/s：{} 太短，分不清是积压还是一阵集中到达",
    "not decided: {}": "未能判定：{}",
    "Requests came at equal distances.": "请求按等间隔到达。",
    "Independent users come in bunches: the rate that a server sustains for them is at most this one; a sweep "
    "with `process: poisson` needs steps several times as long.": "独立用户的请求会扎堆到达：服务端对它们能持续的速率"
    "至多如此；用 `process: poisson` 扫描时，每档需要长数倍。",
    "the client was late: its event loop woke {} late at p99, {} of the median inter-chunk gap ({})": "客户端迟滞："
    "事件循环在 p99 处晚醒 {0}，占块间隔中位数（{2}）的 {1}",
    "the client was late: its event loop woke {} late at p99, {} of the median TTFT ({})": "客户端迟滞：事件循环在 "
    "p99 处晚醒 {0}，占 TTFT 中位数（{2}）的 {1}",
}
