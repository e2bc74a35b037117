"""What Baton costs, and how it compares: for its developers, not in the wheel. `python -m benchmarks.<name> --help`."""
