"""Configuration: the schema, and the one place that reads files, environment and flags."""
