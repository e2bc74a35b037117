"""One request over HTTP/1.1, timed where its bytes arrive.

`http` has connections, `stream` understands an answer, `exchange` makes a `Record` of it.
"""
