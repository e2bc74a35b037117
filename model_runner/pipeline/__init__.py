"""How the stages of a pipeline hand their tensors on, on a CPU: `choose` first, then `lane`; docs/decisions/0024."""
