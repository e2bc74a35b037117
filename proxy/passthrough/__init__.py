"""Routes of vLLM's that generate no text over a prefill and a decode leg: one node that has them serves them whole.

Which node has a route is said by the node (`routes` in `/baton/node`). `routes` lists what is passed, `choose` picks
the nodes, `serve` relays, `response_owner` finds the node that holds a stored response.
"""
