"""Two proxies without features: what a straightforward one costs. `python -m …` takes --port, --prefill and --decode."""
