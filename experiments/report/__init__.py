"""A report of results: a page for browsers, Markdown, LaTeX, figures, and the raw results behind all of it."""
