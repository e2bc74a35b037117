"""Which nodes serve a request: the first plan, the plan after a failure, the budget of retries. No I/O."""
