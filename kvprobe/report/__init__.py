"""What we show. All foreign text passes through `sanitize`."""
