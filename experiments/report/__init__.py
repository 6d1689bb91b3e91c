"""A report of results: a page for browsers, Markdown, LaTeX, figures, and the raw results that all of it is made of."""
