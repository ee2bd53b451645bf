#!/usr/bin/env bash
# The whole check on a machine with a CUDA GPU, in under 6 minutes; writes reports/gpu/.
#   tests/gpu/check.sh [PYTHON]      PYTHON needs torch with CUDA, triton and this project installed.
# Exit code 1 when a check failed. Every part is tried, whatever became of the one before.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${1:-python3}
mkdir -p reports/gpu
unset TRITON_INTERPRET
PYTHONPATH=. timeout --signal=INT 350 "$PYTHON" tests/gpu/check.py --out reports/gpu
