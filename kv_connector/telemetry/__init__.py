"""Histograms, timings and refusals, counted by the connector and shown by the node."""
