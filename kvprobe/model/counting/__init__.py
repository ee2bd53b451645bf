"""Counting the parameters of a model from its configuration: blocks, and a table of families."""
