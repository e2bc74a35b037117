"""`loadtest run`: arguments → stages → records → a report."""
