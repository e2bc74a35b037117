"""The placement of requests in virtual time: two plain servers, a pair for every request, and Baton's own choice."""
