"""What depends on vLLM's version, platform and configuration: versions, attention backends, LoRA, speculative decoding, fingerprints."""
