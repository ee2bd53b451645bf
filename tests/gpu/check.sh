#!/usr/bin/env bash
# The whole check on a machine with a CUDA GPU, in under 6 minutes; writes reports/gpu/.
#   tests/gpu/check.sh [PYTHON]      PYTHON needs torch with CUDA, triton, pytest and this project installed.
# Every part is tried, whatever became of the one before. Exit code 1 when a check failed, 2 when
# nothing could be checked: no Python, a package that is missing, no CUDA device.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${1:-python3}
command -v "$PYTHON" >/dev/null || { echo "check.sh: no such Python: $PYTHON" >&2; exit 2; }
unset TRITON_INTERPRET
export PYTHONPATH=.
"$PYTHON" - <<'PROBE' || exit 2
import importlib.util, sys
lacking = [name for name in ("torch", "triton", "pytest") if importlib.util.find_spec(name) is None]
if lacking:
    sys.exit(f"check.sh: nothing was checked: {sys.executable} lacks {', '.join(lacking)}")
import torch
if not torch.cuda.is_available():
    sys.exit(f"check.sh: nothing was checked: torch {torch.__version__} sees no CUDA device")
PROBE
mkdir -p reports/gpu
# `timeout` is GNU's; where it is missing the parts' own limits have to do.
LIMIT=()
command -v timeout >/dev/null && LIMIT=(timeout --signal=INT 350)
${LIMIT[@]+"${LIMIT[@]}"} "$PYTHON" tests/gpu/check.py --out reports/gpu
