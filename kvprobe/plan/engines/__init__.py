"""How each engine turns bytes into blocks, by version."""
