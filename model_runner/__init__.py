"""What both kinds of node put inside vLLM's worker: one thin worker class per device."""
