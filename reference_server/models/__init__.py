"""Model shapes, weights and tokenizers."""
