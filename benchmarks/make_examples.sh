#!/usr/bin/env bash
# The example reports under reports/ and the pictures under docs/img, made again from nothing:
#
#     benchmarks/make_examples.sh            # some minutes on two cores
#
# A run that the machine's other work made INVALID says so on its page: run this again on a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=$(mktemp -d /tmp/kvprobe-examples.XXXXXX)
kvprobe() { "$python" -m kvprobe "$@"; }
newest() { ls -d "$out"/*-"$1"-* | tail -1; }

# 1: one long system prompt, many questions
kvprobe run shared_prefix --out "$out" --threshold 'ttft.p95 < 1s' --threshold 'ttft.p99 < 2s' || true
kvprobe report "$(newest shared_prefix)" --html reports/example_shared_prefix.html \
    --md reports/example_shared_prefix.md >/dev/null
kvprobe report "$(newest shared_prefix)" --html reports/example_shared_prefix.zh.html --lang zh >/dev/null

# 2: reservation against paging
kvprobe run allocator_contrast --out "$out" || true
kvprobe report "$(newest allocator_contrast)" --html reports/example_allocators.html >/dev/null

# 3: before launch: a plan, and a sweep of the service that it is about (the bundled server's tiny model)
kvprobe run sweep_rate --out "$out" --threshold 'ttft.p50 < 1s' || true
kvprobe plan --model reports/example_model.json --engine reference --available-kv 256MiB --max-model-len 8192 \
    --lengths p50=128,p95=256,max=512 --price-per-hour 0.10 --json > "$out/plan.json"
kvprobe report "$(newest sweep_rate)" --plan "$out/plan.json" --demand 5/s --growth 10% \
    --html reports/example_before_launch.html --md reports/example_before_launch.md >/dev/null
kvprobe report "$(newest sweep_rate)" --html "$out/sweep.html" >/dev/null

# 4: a pool that is too small, for the pictures
kvprobe run mixed_lengths --out "$out" --serve-args '--kv-memory 8MiB' || true
kvprobe report "$(newest mixed_lengths)" --html "$out/pool.html" >/dev/null
"$python" benchmarks/example_pictures.py "$out" docs/img
echo "run directories: $out"
