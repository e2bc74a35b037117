"""The docs site: the repository's Markdown as HTML that needs no network, and the checks of its links.

`nav` (which page stands where) → `sources` (what Sphinx reads) → `build` (Sphinx itself, and what its pages would fetch). `markdown_links` looks at the Markdown as it lies in the repository. `python -m tests.site --out build/site` does it all.
"""
