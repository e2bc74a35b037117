"""`/dashboard`: what the proxy and its nodes do at this moment, for people.

Nothing is noted, asked or kept while no page is open.
"""
