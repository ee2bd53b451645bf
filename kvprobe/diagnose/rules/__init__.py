"""One file per family of causes."""
