"""Hostile input, seeded: values and frames that almost are what they should be."""
