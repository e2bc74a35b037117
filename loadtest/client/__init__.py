"""One request over HTTP/1.1, timed where its bytes arrive: `http` has connections, `exchange` makes a `Record` of it."""
