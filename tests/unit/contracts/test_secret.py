from pathlib import Path

import pytest

from baton.contracts.secret import ClusterSecret, SecretError, generate_secret, read_secret

A, B, C = b"secret A, in use", b"secret B, to come", b"secret C, later on"


def test_keys_differ_by_purpose_and_by_secret() -> None:
    ours, theirs = ClusterSecret(b"a" * 16), ClusterSecret(b"b" * 16)

    keys = {secret.derive(purpose) for secret in (ours, theirs) for purpose in ("one", "two")}

    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
    assert ours.derive("one") == ClusterSecret(b"a" * 16).derive("one")
    assert ours == ClusterSecret(b"a" * 16) != theirs


def test_the_node_token_is_printable_and_not_the_secret() -> None:
    """It travels in a header, so it must be text and must not give the secret away."""
    token = ClusterSecret(b"a" * 16).node_token()

    assert (len(token), token.isalnum(), "aaaaaaaa" in token) == (64, True, False)


def test_a_secret_is_never_shown() -> None:
    secret = ClusterSecret(b"do-not-print-this")

    assert "print" not in f"{secret} {secret!r}"


def test_generated_secrets_are_long_and_different() -> None:
    first, second = generate_secret(), generate_secret()

    assert first != second
    assert ClusterSecret(first.encode()).values == (first.encode(),)


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="nowhere: No such file"):
        read_secret(tmp_path / "nowhere")


def write(file: Path, *lines: bytes) -> ClusterSecret:
    """Write a secret file, and read it as a process does that starts now."""
    file.write_bytes(b"\n".join(lines))
    return read_secret(file)


@pytest.fixture
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process looks at the file whenever it uses the secret."""
    monkeypatch.setattr("baton.contracts.secret.LOOK_AGAIN_S", 0.0)


def test_a_file_may_hold_two_secrets_and_comments(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", b"# the cluster's", A, b"", b"  # since May", b"  " + B + b"\r", b"")

    assert secret.values == (A, B)


def test_the_first_is_used_and_both_are_accepted() -> None:
    both, only_b = ClusterSecret(A, B), ClusterSecret(B)

    assert both.derive("x") == ClusterSecret(A).derive("x")
    assert both.accepted("x") == (ClusterSecret(A).derive("x"), only_b.derive("x"))
    assert both.node_token() == ClusterSecret(A).node_token()


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [((A,), (A, B)), ((A, B), (A,)), ((A, B), (B, A)), ((B, A), (A, B)), ((B, A), (B,)), ((B,), (B, A))],
)
def test_tokens_are_accepted_between_neighbouring_steps_of_a_rotation(
    shown: tuple[bytes, ...], wanted: tuple[bytes, ...]
) -> None:
    """While processes change one by one, each accepts what the other shows."""
    assert ClusterSecret(*wanted).accepts_node_token(ClusterSecret(*shown).node_token().encode())


@pytest.mark.parametrize("token", [b"", b"Bearer", b"\xff" * 64, ClusterSecret(C).node_token().encode()])
def test_other_tokens_are_not_accepted(token: bytes) -> None:
    assert not ClusterSecret(A, B).accepts_node_token(token)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "at least 16 characters"),
        ((b"",), "at least 16 characters"),
        ((b"short",), "at least 16 characters"),
        ((A, b"short"), "at least 16 characters"),
        ((A, B, C), "3 cluster secrets"),
        ((A, A), "the same"),
        ((b"\xff\xfe" * 20,), "it is no text"),
    ],
)
def test_unusable_files_are_refused_with_a_sentence(tmp_path: Path, lines: tuple[bytes, ...], words: str) -> None:
    """An empty file must not become a valid key, nor a file of another kind."""
    with pytest.raises(SecretError, match=words):
        write(tmp_path / "secret", *lines)


@pytest.mark.usefixtures("always_looks")
def test_a_change_of_the_file_is_followed(tmp_path: Path) -> None:
    """A secret can be replaced without a restart, by writing the file or by putting another in its place."""
    file, other = tmp_path / "secret", tmp_path / "other"
    secret = write(file, A)
    write(file, A, B)
    assert secret.values == (A, B)

    write(other, B, A)
    other.rename(file)

    assert secret.values == (B, A)
    assert secret.derive("x") == ClusterSecret(B).derive("x")


def test_the_file_is_not_looked_at_each_time(tmp_path: Path) -> None:
    """A request does not pay for it."""
    file = tmp_path / "secret"
    secret = write(file, A)
    write(file, B)

    assert secret.values == (A,)


@pytest.mark.usefixtures("always_looks")
def test_a_file_that_has_become_unusable_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half-written, emptied or missing: the last secrets stay, the log says so once, and what comes next counts."""
    file = tmp_path / "secret"
    secret = write(file, A)
    file.write_bytes(b"half")
    assert [secret.values for _ in range(5)] == [(A,)] * 5
    assert caplog.text.count("cannot be used") == 1

    file.unlink()
    assert [secret.values for _ in range(5)] == [(A,)] * 5
    assert caplog.text.count("cannot be used") == 2

    write(file, B)
    assert secret.values == (B,)
    assert "secret B" not in caplog.text
