"""Who may ask: API keys with limits, TLS, and how large a request's head may be.

`guard` stands in front of the data routes and asks `keyring`, which holds an `account` per key of the `key_file`; `counts`
is what workers count together. `follow` sees that a file has changed. `tls` makes what connections are encrypted with, and
`heads` bounds what a client may send before its body.
"""
