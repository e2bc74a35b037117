from pathlib import Path

from tests.mutants.draw import Drawn, draw, faults_of

ROOT = Path(__file__).parents[3]
SOURCE = '''
LIMIT = 3

async def send(self, é: bytes) -> int | None:
    """Text."""
    if not self.open and len(é) < LIMIT:
        raise ValueError("2")
    logger.info("sent %d", 1)
    self.sent = copy.put(é, 5)
    await self.flush()
    with lock(1 if é else 2):
        return self.sent
'''


def test_what_can_be_wrong_with_a_function() -> None:
    faults = [fault for of_statement in faults_of("a/b.py", SOURCE) for fault in of_statement]

    assert {(fault.line, fault.old, fault.new) for fault in faults} == {
        (6, "not self.open and len(é) < LIMIT", "not (not self.open and len(é) < LIMIT)"),
        (6, "not self.open and len(é) < LIMIT", "((not self.open) or (len(é) < LIMIT))"),
        (6, "not self.open and len(é) < LIMIT", "(not self.open)"),
        (6, "not self.open and len(é) < LIMIT", "(len(é) < LIMIT)"),
        (6, "not self.open", "bool(self.open)"),
        (6, "len(é) < LIMIT", "(len(é) <= LIMIT)"),
        (6, "len(é)", "(len(é) + 1)"),
        (7, 'raise ValueError("2")', "pass"),
        (9, "self.sent = copy.put(é, 5)", "pass"),
        (9, "é, 5", "5, é"),
        (9, "5", "(5 + 1)"),
        (10, "await self.flush()", "pass"),
        (11, "1", "(1 + 1)"),
        (11, "2", "(2 + 1)"),
        (11, "é", "(not (é))"),
        (12, "self.sent", "None"),
    }
    for fault in faults:
        changed = fault.applied_to(SOURCE)
        compile(changed, "b.py", "exec")
        assert len(changed) - len(SOURCE) == len(fault.new) - len(fault.old)


def test_a_seed_draws_the_same_faults_and_each_statement_once() -> None:
    drawn = draw(ROOT, 200, 7, [])

    assert drawn == draw(ROOT, 200, 7, [])
    assert drawn != draw(ROOT, 200, 8, [])
    assert len(set(drawn)) == 200
    assert {fault.file for fault in draw(ROOT, 20, 7, ["proxy/http/pool.py"])} == {"proxy/http/pool.py"}


def test_tests_of_the_folder_come_first() -> None:
    assert Drawn("kv_connector/layout/groups.py", 1, 0, 1, "a", "b").stages == (
        ("tests/unit/kv_connector/layout",),
        ("tests/unit/kv_connector", "tests/explorer", "tests/integration/kv_connector"),
    )
    assert Drawn("proxy/http/pool.py", 1, 0, 1, "a", "b").stages == (
        ("tests/unit/proxy/http",),
        ("tests/unit/proxy", "tests/integration/proxy"),
    )
