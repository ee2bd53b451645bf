"""Our own numbers for other people's tools: a metrics page while a run goes on, a file after it."""
