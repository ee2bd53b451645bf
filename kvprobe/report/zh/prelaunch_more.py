"""The tree of prefixes, sensitivity, thresholds, cold start and the machine, in Chinese."""

from __future__ import annotations

from typing import Final

PRELAUNCH_MORE: Final[dict[str, str]] = {
    # the tree of prefixes
    "The tree of shared prefixes": "共享前缀树",
    "Each row is a start that several prompts share, further in what shares more. A bar is the prompt tokens "
    "that its reuse can save beyond the row above it; token counts are {how}.": "每一行是若干提示词共有的开头，"
    "缩进越深共享越长。条长是在上一级之外，复用它还能省下的输入 token；token 数为{how}。",
    "exact": "精确值",
    "estimated": "估算值",
    "{n} of {all} nodes are drawn, those that save most.": "共 {all} 个节点，只画出节省最多的 {n} 个。",
    "{t} tokens, {n} prompts": "{t} token，{n} 条提示词",
    "Shared starts": "共享的开头",
    "shared start, tokens": "共享开头，token",
    "prompts that share it": "共享它的提示词数",
    "tokens saved": "节省的 token",
    "of all prompt tokens": "占全部输入 token",
    "ends with, and goes on with": "结尾及其后续",
    "A dash is one step further down the tree.": "每个短横表示在树中再深一级。",
    # gaps by what is in prefill
    "above {n} prompt tokens in prefill": "预填充中的输入超过 {n} token",
    "{a} to {b} prompt tokens in prefill": "预填充中的输入为 {a} 至 {b} token",
    # sensitivity
    "prompt tokens (ISL)": "输入 token（ISL）",
    "answer tokens (OSL)": "输出 token（OSL）",
    "prefix hit rate": "前缀命中率",
    "input": "输入量",
    "concurrent requests": "并发请求数",
    "a quarter lower": "减少四分之一",
    "a quarter higher": "增加四分之一",
    "What each input does": "各输入量的影响",
    "Cost of the demand a month, each input a quarter lower and higher": "满足需求的每月成本：各输入量分别减少、"
    "增加四分之一",
    "Share of one replica's cache that the demand takes, each input a quarter lower and higher": "需求占单个副本"
    "缓存的比例：各输入量分别减少、增加四分之一",
    "The line in the middle is {value}, with every input as it stands.": "中线为 {value}，即各输入量保持不变时。",
    "share = requests at once x (prompt x (1 - hit rate) + answer + (block - 1) / 2) / pool tokens; cost a month = "
    "share x price of an hour x 730. Calculated, not measured: shares of a replica are not rounded up, and a "
    "token that hits is taken as held already.": "占比 = 并发请求数 x（输入 x (1 - 命中率) + 输出 + (块 - 1) / 2）/ 缓存池 "
    "token 数；每月成本 = 占比 x 每小时价格 x 730。此为计算值，并非实测：副本数不取整，命中的 token 视为已有副本。",
    "How the need moves with prompt, answer, concurrency, hit rate and price is not known yet: it takes a plan "
    "with a pool and a valid run.": "需求随输入长度、输出长度、并发、命中率和价格如何变化，目前未知：需要一份含缓存池的"
    "规划和一次有效的运行。",
    "measured: median of the run": "实测：本次运行的中位数",
    "measured: mean of the run": "实测：本次运行的均值",
    "measured: the server's counters or usage": "实测：服务端计数器或 usage",
    "not known: taken as 0": "未知：按 0 计",
    "stated with --price-per-hour": "由 --price-per-hour 给出",
    "stated rate x measured time in the system (Little's law)": "给定速率 x 实测逗留时间（利特尔法则）",
    # replicas
    "replicas, each at {share} of its capacity at most": "所需副本数（每个至多用其容量的 {share}）",
    "load of each replica": "每个副本的负载",
    "{a} of its capacity; {b} when one is lost": "其容量的 {a}；失去一个副本时为 {b}",
    "load of a replica": "单个副本的负载",
    "{share} of the capacity: {source}": "容量的 {share}：{source}",
    "KV use": "KV 占用",
    "requests waiting": "排队中的请求",
    "for several readings: a queue is a wait for the first token": "连续多次读数：排队即意味着首 token 要等待",
    "the red line: a burst then queues, preempts or evicts": "红线：此时突发流量会引起排队、抢占或驱逐",
    "> 0 a minute": "每分钟 > 0",
    "each computes its tokens again: too late to scale": "每次抢占都要重算 token：此时再扩容已晚",
    "Readings from which another replica is due": "需要增加副本的读数",
    "sign": "信号",
    "threshold": "阈值",
    "How long a new replica takes to start decides how early a sign must be used (section 10).": "新副本启动所需时间"
    "决定了要多早采用这些信号（见第 10 节）。",
    # cold start
    "The first requests of the run": "本次运行的最初几个请求",
    "request": "请求",
    "prompt tokens": "输入 token",
    "of them cached": "其中命中缓存",
    "counts as": "计为",
    "warm-up": "预热",
    "Warm-up requests count in no other number of this report.": "预热请求不计入本报告的其他任何数字。",
    "TTFT p50 of the measured requests": "计入统计的请求的 TTFT p50",
    "server up before the first request": "首个请求之前服务已运行",
    "not known: the server does not export its start time": "未知：服务端没有导出启动时间",
    "not known: the clocks of client and server disagree": "未知：客户端与服务端的时钟不一致",
    # demand against capacity
    "quantity": "量",
    # the machine
    "KV heads": "KV 头数",
    "head dimension": "头维度",
    "not known, or not one number": "未知，或各层不同",
    "GPUs of a replica": "每个副本的 GPU 数",
    "GPUs seen in the run": "运行中看到的 GPU",
    "driver": "驱动",
    "power cap": "功耗上限",
    "interconnect": "互连",
    "none: one GPU": "无：单个 GPU",
    "nobody said": "无人给出",
}
