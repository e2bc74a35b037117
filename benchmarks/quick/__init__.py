"""Has anything become slower? Ratios only, in one run of a few minutes, beside a stored baseline: `make bench-quick`.

Each figure is a ratio of two things that are measured in turn on the same machine, so that a slower machine moves both.
A person decides what a difference means: nothing here fails because of one.
"""
