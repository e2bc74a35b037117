"""Token transfers inside vLLM's V1 model runners: `event_synced` first; docs/decisions/0027."""
