"""What crosses a process boundary: parameters, headers, paths, error bodies, configuration.

This room imports nothing of ours and nothing heavy, so that the proxy (which must never import torch or
vLLM) and the nodes agree on names by importing the same module.
"""
