"""OpenTelemetry traces of requests: W3C trace context, sampling, export."""
