"""Where KV lies: regions of memory, KV cache groups, sliding windows, tensor-parallel mappings, and the copies between two layouts. No I/O.

Which kinds of KV cache are accepted: `groups.py`.
"""
