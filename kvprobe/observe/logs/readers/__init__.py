"""One module per engine family; each lists its `READERS`."""
