"""Causes that logs can prove; one module per family."""
