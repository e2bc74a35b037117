"""How the stages of a pipeline hand their tensors on, on a CPU: `lane` first; docs/decisions/0024."""
