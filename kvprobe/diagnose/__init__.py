"""What it means: validity first, then symptoms and causes."""
