"""API keys with limits.

`middleware` stands in front of the data routes and asks `keyring`, which holds an `account` per key of the `key_file`;
`counts` is what workers count together.
"""
