"""One request over HTTP/1.1, timed where its bytes arrive.

`address` reads the URL, `wire` is one connection, `pool` keeps connections, `stream` understands an answer, `exchange` makes
a `Record` of it.
"""
