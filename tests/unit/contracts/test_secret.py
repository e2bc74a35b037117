from pathlib import Path

import pytest

from contracts.secret import ClusterSecret, SecretError, generate_secret, read_secret


def test_keys_differ_by_purpose_and_by_secret() -> None:
    """A key for one purpose tells nothing about another, and two clusters share none."""
    ours, theirs = ClusterSecret(b"a" * 16), ClusterSecret(b"b" * 16)

    keys = {secret.derive(purpose) for secret in (ours, theirs) for purpose in ("one", "two")}

    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
    assert ours.derive("one") == ClusterSecret(b"a" * 16).derive("one")


def test_the_node_token_is_printable_and_not_the_secret() -> None:
    """It travels in a header, so it must be text and must not give the secret away."""
    token = ClusterSecret(b"a" * 16).node_token()

    assert len(token) == 64
    assert token.isalnum()
    assert "aaaaaaaa" not in token


def test_a_secret_is_never_shown() -> None:
    """Neither `repr` nor a format string leaks it into a log."""
    secret = ClusterSecret(b"do-not-print-this")

    assert "print" not in f"{secret} {secret!r}"


def test_generated_secrets_are_long_and_different() -> None:
    """Two calls never agree, and each secret is accepted."""
    first, second = generate_secret(), generate_secret()

    assert first != second
    assert ClusterSecret(first.encode()).value == first.encode()


def test_white_space_around_a_secret_in_a_file_is_ignored(tmp_path: Path) -> None:
    """Editors end files with a newline."""
    file = tmp_path / "secret"
    file.write_text("  0123456789abcdef\n")

    assert read_secret(file) == ClusterSecret(b"0123456789abcdef")


@pytest.mark.parametrize("content", ["", "\n", "short"])
def test_a_short_secret_is_refused(tmp_path: Path, content: str) -> None:
    """An empty file must not become a valid key."""
    file = tmp_path / "secret"
    file.write_text(content)

    with pytest.raises(SecretError, match="at least 16 characters"):
        read_secret(file)


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    """The sentence names the path and the reason."""
    with pytest.raises(SecretError, match="nowhere: No such file"):
        read_secret(tmp_path / "nowhere")
