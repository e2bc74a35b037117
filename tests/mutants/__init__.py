"""Small faults put into the product, one at a time: for each, tests must fail. `make mutants`; by hand, a few minutes."""
