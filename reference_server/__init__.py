"""The bundled reference server: a small paged-KV inference server whose inner state is known.

A separate program: kvprobe meets it over HTTP only and never imports it, nor it kvprobe.
"""

__version__ = "0.1.0"
