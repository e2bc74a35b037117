"""A release's files, built from a commit: `python -m baton.deploy.release`, which `make dist` runs before it tries the wheel.

`objections` decides whether a commit can be released, `build` makes the sdist and, from that alone, the wheel.
"""
