"""Is Baton's API that of one vLLM server, field by field? Requests are generated pairwise and answers compared.

`axes` says what requests are made of, `pairwise` combines that, `compare` lists differences, `allowed` names those that
there may be, each with its reason. `docs/api.md` has the same list.
"""
