"""How each published family of models lays out its cache: one reader a layout, one table of names."""
