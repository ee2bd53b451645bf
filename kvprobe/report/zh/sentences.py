"""Sentences of rules in Chinese; `{}` stands for what differs, in the order of the English.

Only whole sentences are translated: one whose form is not here stays English and is marked so.
"""

from __future__ import annotations

from typing import Final

from kvprobe.report.zh.sweep_sentences import SWEEP_SENTENCES

SENTENCES: Final[dict[str, str]] = {
    **SWEEP_SENTENCES,
    # why a number is missing
    "n too small: {}, p{} needs {}": "样本不足：{}，p{} 至少需要 {}",
    "n too small: {} correlated values count as {}, p{} needs {}": "样本不足：{} 个相关值折合 {} 个，p{} 至少需要 {}",
    "no values": "没有数据",
    "not exported": "服务端未导出",
    "no server metrics": "没有服务端指标",
    "no request ended well": "没有成功的请求",
    "no usage from the server": "服务端没有给出 usage",
    "no usage": "没有 usage",
    "single tokens": "只有单个 token",
    "no NVML device": "没有 NVML 设备",
    "the prefix counters did not move": "前缀计数器没有变化",
    "the prefix counters hold others' requests": "前缀计数器混入了他人的请求",
    "censored: longer than {} s, when the wait was cut short": "被截断：等待在 {} 秒时中断，实际更长",
    # the plan
    "lengths between {} follow a lognormal through them; above it up to max at an even pace in ln(tokens) (max "
    "{})": "{} 之间的长度按经过这些点的对数正态分布；其上直到最大值（{}），按 ln(token) 均匀分布",
    "given by --available-kv": "由 --available-kv 给定",
    # validity
    "the server does not keep up: {} requests/s were sent and {}/s done, so {} had piled up when the last one "
    "was sent; TTFT is mostly waiting, and its percentiles depend on the length of the run: do not quote "
    "them": "服务端未跟上负载：每秒发出 {} 个请求、完成 {} 个，最后一个发出时已积压 {} 个；TTFT 大部分是等待，"
    "其百分位取决于运行时长，请勿引用",
    "no steady state: {} rose by {} % over the window; percentiles depend on the length of the run": "未达稳态："
    "{} 在窗口内上升了 {} %；百分位取决于运行时长",
    "client and server share this machine's {} cores: each takes time from the other": "客户端与服务端共用本机的 {} "
    "个核：彼此争用 CPU",
    "client and server share the cores of this machine: each takes time from the other": "客户端与服务端共用本机的核："
    "彼此争用 CPU",
    "the client was late: its event loop woke {} late at p99, {} of the {} {} ({})": "客户端迟滞：事件循环在 p99 "
    "处晚醒 {0}，占{2} {3}（{4}）的 {1}",
    "the client ran out of CPU: its core was full in {} of the readings": "客户端 CPU 不足：{} 的读数中其核已满",
    "the client stood still for {} (stopped or suspended): nothing was measured meanwhile": "客户端停顿了 {}"
    "（被停止或挂起）：其间没有任何测量",
    "the client's event loop stalled for up to {} ({} stalls of {} or more): the slowest latencies may be the "
    "client's own": "客户端事件循环最长卡顿 {}（{} 次，均达到或超过 {}）：最慢的时延可能来自客户端自身",
    "the client's event loop stalled for up to {} ({} stall of {} or more): the slowest latencies may be the "
    "client's own": "客户端事件循环最长卡顿 {}（{} 次，达到或超过 {}）：最慢的时延可能来自客户端自身",
    "other processes took {} of this machine's {} cores, which were {} busy: the server would be faster without "
    "them": "其他进程占用了本机 {} 个核（共 {} 个，忙碌 {}）：没有它们服务端会更快",
    # pool
    "The KV pool was too small for this load: {} or more of it was in use in {} of {} readings (max {}), with {}; "
    "it holds {} tokens, {} typical requests of {} tokens at once.": "KV 池对该负载偏小：占用达到或超过 {} 的读数有 "
    "{} 次（共 {} 次，最高 {}），并出现 {}；该池可容纳 {} token，即同时 {} 个 {} token 的典型请求。",
    "The KV pool was too small for this load: {} or more of it was in use in {} of {} readings (max {}), with {}."
    "": "KV 池对该负载偏小：占用达到或超过 {} 的读数有 {} 次（共 {} 次，最高 {}），并出现 {}。",
    "KV memory was not the limit: at most {} of the pool was in use and nothing waited.": "KV 显存不是瓶颈：池最高"
    "占用 {}，没有请求等待。",
    "This load says nothing about how the server behaves when the pool is full.": "该负载不能说明池满时服务端的表现。",
    "up to {} of the pool in use": "池最高占用 {}",
    "{} preemptions (each computes a request's tokens again)": "抢占 {} 次（每次都要重新计算该请求的 token）",
    "{} preemption (each computes a request's tokens again)": "抢占 {} 次（需要重新计算该请求的 token）",
    "requests waited in {} readings at the red line": "在警戒线上的读数中，有 {} 次存在等待的请求",
    "requests waited in {} reading at the red line": "在警戒线上的读数中，有 {} 次存在等待的请求",
    "how many requests of this length the pool holds at once, against the users": "该长度的请求池能同时容纳多少，与用户数对比",
    "a larger KV pool, or a limit on concurrent sequences that the pool can hold": "扩大 KV 池，或把并发序列数限制在池能"
    "容纳的范围内",
    "the same latencies, and no preemptions, with a pool twice as large": "池扩大一倍后时延不变，且没有抢占",
    "a larger KV pool, or fewer bytes a token (KV precision, a model with fewer KV heads)": "扩大 KV 池，或降低每 token "
    "的字节数（KV 精度、KV 头更少的模型）",
    "a larger KV pool, or fewer distinct prefixes at a time": "扩大 KV 池，或减少同时使用的不同前缀",
    "bytes per token, the sum of active tokens, and the context limit": "每 token 字节数、活跃 token 总和以及上下文上限",
    "the same pressure with short requests": "短请求下压力依旧",
    "the same queue with twice the limit": "上限加倍后排队依旧",
    "raise that limit to what the pool holds at the real lengths": "把该上限提高到池按真实长度能容纳的数量",
    "the limit on concurrent sequences (vLLM, bundled server: --max-num-seqs)": "并发序列上限（vLLM 与内置服务端："
    "--max-num-seqs）",
    "an allocator that hands out blocks as tokens come (bundled server: --allocator paged)": "按 token 到来逐块分配的"
    "分配器（内置服务端：--allocator paged）",
    "a lower context limit or max_tokens: what is reserved follows it": "降低上下文上限或 max_tokens：预留量随之减少",
    "the allocator's policy, and the context limit and max_tokens against real lengths": "分配策略，以及上下文上限、"
    "max_tokens 与真实长度的对比",
    "requests that do grow to the length that is reserved for them": "请求确实会增长到预留的长度",
    "a restart frees the pool": "重启可以释放池",
    "keep other processes off the device": "让其他进程离开这张卡",
    "or leave them room: a lower utilisation setting": "或为其留出空间：降低显存利用率设置",
    # failures
    "{} of {} requests ({}) failed ({}), and nothing that was read says why.": "{} 个请求失败（共 {} 个，{}；{}），所读"
    "材料都未说明原因。",
    "the server's log at the time of the first failure": "第一次失败时的服务端日志",
    "collect the server's log and pass it to `kvprobe diagnose` together with this run directory": "收集服务端日志，与"
    "本运行目录一起交给 `kvprobe diagnose`",
    "an error in the server's log, or a kernel message that names the process": "服务端日志中的错误，或提到该进程的内核消息",
    # prefix
    "TTFT fell {} times [{}, {}] where the prefix was cached: median {} for {} cold requests ({} prefixes) against "
    "{} for {} warm ones.": "前缀命中时 TTFT 缩短到原来的 1/{}（区间 [{}, {}]）：冷请求中位数 {}（{} 个请求，{} 个前缀），"
    "热请求 {}（{} 个）。",
    "Decode did not change, to within {} %: the gap between chunks of warm requests is {} times [{}, {}] that of "
    "cold ones, where no other request was being prefilled.": "解码速度不变（误差 {} % 以内）：在没有其他请求预填充时，"
    "热请求的块间隔是冷请求的 {} 倍（区间 [{}, {}]）。",
    "(Plain TPOT differs, {} times [{}, {}]: cold requests come together, and the prefill of each slows the decode "
    "of the others.)": "（直接比较 TPOT 会有差异，为 {} 倍，区间 [{}, {}]：冷请求集中到来，彼此的预填充拖慢了解码。）",
    "This is what prefix caching does: it saves prefill, never decode.": "这正是前缀缓存的作用：节省预填充，不影响解码。",
    "{} of the prompt tokens came from the prefix cache{}; {} requests began with a cached prefix{}, too few to compare for what a hit saves{}.": "提示词 token 的 {} 来自前缀缓存{}；{} 个请求以已缓存的前缀开始{}，样本太少，无法比较命中节省了多少{}。",
    "put what changes from request to request behind what all requests share, or leave it out": "把每次变化的内容移到"
    "所有请求共享的部分之后，或去掉",
    "prompts whose token ids are equal up to the end of the shared part": "提示词的 token id 直到共享部分末尾都相同",
    "share at least {} tokens, or use a smaller block": "让共享部分至少达到 {} token，或使用更小的块",
    "the block size that the engine really uses (hybrid models enlarge it)": "引擎实际使用的块大小（混合模型会放大它）",
    "a hit on a prefix shorter than one block": "短于一个块的前缀却有命中",
    "a configuration that says it is on": "配置显示该功能已打开",
    "a single prompt token served from the cache": "哪怕有一个输入 token 来自缓存",
    # a plan
    "no --tokens was given": "没有给出 --tokens",
    "no part of this rule": "该规则不含此项",
    "a term of the budget is only known as a range": "预算中有一项只知道范围",
    "counts are ranges: a term of the budget is only known as a range": "数量为范围：预算中有一项只知道范围",
    "the budget is a range: see {}": "预算为范围：见 {}",
    "no --engine-version was given: the newest is assumed": "没有给出 --engine-version：按最新版计",
    "the newest {}, as no --engine-version was given": "按最新版 {}，因为没有给出 --engine-version",
    "nothing else uses the card; memory counted is per GPU": "这张卡没有其他用途；显存按单张 GPU 计",
    "requests are independent and all at full growth at the same time: the cautious reading": "请求彼此独立，且同时达到"
    "最大长度：取保守的算法",
    "by the mean length {} requests fit; with these lengths only {} do so {} of the time": "按平均长度可容纳 {} 个请求；"
    "按实际长度分布，只有 {} 个能以 {} 的概率放下",
    "by the mean length {} requests fit; with these lengths only {} do so {} of the time: set the limit by the "
    "distribution": "按平均长度可容纳 {} 个请求；按实际长度分布，只有 {} 个能以 {} 的概率放下：请按分布设定上限",
    "{} fits: at least {} tokens of KV cache; {} requests at once with a chance of preemption of at most {}": "{} 放得下："
    "KV 缓存至少 {} token；同时 {} 个请求，抢占概率不超过 {}",
    "{} fits: {} tokens of KV cache; {} requests at once with a chance of preemption of at most {}": "{} 放得下：KV 缓存 "
    "{} token；同时 {} 个请求，抢占概率不超过 {}",
    "the longest request expected has {} tokens": "预期最长请求为 {} token",
    "so many fit with a chance of preemption of at most {} (by the mean it would be {})": "抢占概率不超过 {} 时可容纳的"
    "数量（按均值则为 {}）",
    "the share that this plan counts with and leaves {} for the cache": "本规划所用的比例，为缓存留出 {}",
    "needs how many may wait: it counts running requests too, and refuses with 503 what is above it": "需要知道允许多少"
    "请求等待：它也计入运行中的请求，超出者以 503 拒绝",
    "needs a target for TTFT and the measured prefill speed: their product": "需要 TTFT 目标与实测的预填充速度：取两者之积",
    "weights at half the bytes": "权重字节减半",
    "KV at {}": "KV 用 {}",
    "blocks of {}": "块大小 {}",
    "context limit {}": "上下文上限 {}",
    "next GPU up: {}": "上一档 GPU：{}",
    "a prefix of {} tokens shared by all": "全体共享 {} token 前缀",
    "a sliding window of {} in every layer": "每层使用 {} 的滑动窗口",
    "an instance of its own for requests up to {} tokens": "为不超过 {} token 的请求单设实例",
    "an instance of its own for requests above {} tokens": "为超过 {} token 的请求单设实例",
    "all of the {} freed go to the cache": "腾出的 {} 全部用于缓存",
    "capacity, not speed; check answers on long contexts first": "增加容量而非速度；先检查长上下文的回答质量",
    "larger tails, fewer table entries": "尾部更大，表项更少",
    # a sweep
    "Sustainable {} {} [{}, {}); decode unchanged, queue grows.": "可持续 {} {}，区间 [{}, {})；解码不变，排队增长。",
    "Knee between {} and {}: {} throughput for {} TTFT.": "拐点在 {} 与 {} 之间：吞吐 {}，TTFT 变为 {}。",
    "No knee between {} and {} {}.": "{} 与 {} {} 之间没有拐点。",
    "the server does not tell the model's configuration, and names no directory of this machine": "服务端没有给出模型配置，也没有指明本机上的目录",
    "The KV pool is too small for this load: with {} preemptions.": "KV 池对该负载偏小：出现抢占 {} 次。",
    # long requests
    "{} requests of {} tokens or more filled the KV pool of {} tokens ({} or more in {} readings), with {}; it holds {} tokens, {} typical requests of {} tokens at once.": "{} 个不少于 {} token 的请求占满了 {} token 的 KV 池（占用达到或超过 {} 的读数有 {} 次），并出现 {}；该池可容纳 {} token，即同时 {} 个 {} token 的典型请求。",
    "each of them holds {} of the pool or more": "其中每个都占用池的 {} 或更多",
    "a context limit at which the pool holds as many conversations as come at once": "把上下文上限降到池能同时容纳所有会话的程度",
    "The pool of {} tokens is smaller than one request may be: {} tokens were asked and refused.": "{} token 的池小于单个请求可能的大小：请求了 {} token，被拒绝。",
    "KV tokens / p95 length of a request = how many fit; against the sequence limit": "KV token 数 / 请求的 p95 长度 = 可容纳的数量；与序列上限对比",
    "a limit of concurrent sequences that the pool can hold: no recomputation, same throughput": "把并发序列上限设到池能容纳的数量：不再重复计算，吞吐不变",
    "a larger pool: more cards, quantised weights, fp8 KV (twice the tokens; check quality)": "扩大 KV 池：更多显卡、量化权重、fp8 KV（token 数加倍；须检查质量）",
    "the same slowness with a pool twice as large": "池扩大一倍后依旧很慢",
}
