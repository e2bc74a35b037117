"""Going on with a stream whose decode node failed, on another node, so that the client sees one answer.

`rules.py` says which answers can go on, `record.py` remembers what the client has of one and leaves it out of what a
further node says, and `stream.py` has one request's answer over all its legs. `*_events.py` know what the events of an
API say.
"""
