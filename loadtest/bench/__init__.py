"""Baton beside other ways to serve the same model, in one session: time to first token, and what running streams feel."""
