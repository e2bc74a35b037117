"""What the overlap benchmark measures: two network namespaces, a throttled link, real servers pinned to a core each.

`baton.loadtest.overlap` takes the samples and computes the figures; the part here only starts, joins and stops processes.
Run it with `python -m baton.deploy.overlap`; why it is split so is in docs/decisions/0002-overlap-bench.md.
"""
