"""`baton key`."""

from pathlib import Path

import pytest

from baton.deploy import cli
from baton.proxy.auth.key_file import digest_of, parse


def test_a_new_key_fits_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed can go into a file as it is, but for the key, and two keys are never the same."""
    made = set()
    for _ in range(2):
        assert cli.main(["key", "new", "team-a"]) == 0
        *entry, key = capsys.readouterr().out.splitlines()
        (parsed,) = parse("\n".join(["keys:", *entry]))
        assert (parsed.name, parsed.digests) == ("team-a", (digest_of(key.encode()),))
        assert key not in "\n".join(entry)
        made.add(key)

    assert len(made) == 2


@pytest.mark.parametrize("name", ["with space", "", "a:b", "#", "-x\n"])
def test_a_name_that_a_file_could_not_have_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """No key is shown for it."""
    assert cli.main(["key", "new", "--", name]) == 2

    assert "sk-baton" not in capsys.readouterr().out


def test_a_file_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its names are listed; a mistake is a sentence and status 2."""
    file = tmp_path / "keys.yaml"
    file.write_text("keys: {a: {key: 0123456789abcdef}}")
    assert cli.main(["key", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 1 keys\n  a\n"
    file.write_text("keys: {a: {key: short}}")
    assert cli.main(["key", "check", str(file)]) == 2
    assert "'a': 'key' must have" in capsys.readouterr().err
