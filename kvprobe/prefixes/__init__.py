"""What prompts share: the tree of their prefixes, what a cache could reuse of it, and where the rest goes."""
