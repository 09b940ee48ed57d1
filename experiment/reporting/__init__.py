"""A report for readers: tables, figures, a page."""
