"""Going on with a stream whose decode node failed, on another node, so that the client sees one answer.

`rules.py` says how a request could be resumed, before it is sent; `record.py` remembers what was sent; when a stream
breaks, `continuation.py` makes the request that goes on, and `splicer.py` joins its answer to what the client has.
"""
