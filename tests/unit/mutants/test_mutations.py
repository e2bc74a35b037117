from pathlib import Path

from tests.mutants.mutations import MUTATIONS

ROOT = Path(__file__).parents[3]


def test_every_mutation_can_be_applied_and_names_tests() -> None:
    """Code that changes takes its mutations along; `make mutants` runs them."""
    for each in MUTATIONS:
        assert each.applied_to((ROOT / each.file).read_text())
        assert [test for test in each.tests if not (ROOT / test).exists()] == []
