"""The share of requests that meet both SLOs: two plain servers, a pair that always hands over, and Baton's own choice."""
