"""What people look at: tables, pages, charts and numbers in words. Knows nothing of models or data."""
