"""kvprobe: what the KV cache of an LLM server costs, how it behaves under load, and why it ran out.

From Python: `kvprobe.kv_cache_bytes(model, tokens)` and `kvprobe.plan(model, gpu=..., ...)`; what they
need is imported at the first call.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `plan` is the package of that name, which can be called
    from kvprobe.plan.api import kv_cache_bytes as kv_cache_bytes
    from kvprobe.plan.api import plan as plan

__version__ = "0.1.0"
__all__ = ["__version__", "kv_cache_bytes", "plan"]


def __getattr__(name: str) -> Any:
    if name == "plan":
        import importlib

        return importlib.import_module("kvprobe.plan")  # a package that can be called
    if name == "kv_cache_bytes":
        from kvprobe.plan.api import kv_cache_bytes

        return kv_cache_bytes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
