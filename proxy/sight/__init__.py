"""What operators see of requests: times, traces, a line in a log. Nothing here decides anything."""
