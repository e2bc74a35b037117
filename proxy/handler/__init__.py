"""The main path: one request from the client's bytes to the last byte of its response.

`request_handler` → `failover` → `attempt` → `legs`; what is no longer wanted is told by `cancel_notifier`.
"""
