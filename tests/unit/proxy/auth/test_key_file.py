"""The file of API keys: what it may say, and what is said of its mistakes."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from baton.proxy.auth import key_file
from baton.proxy.auth.key_file import KeyFileError, digest_of, parse

PLAIN = "a-key-in-plain-text"
DIGEST = sha256(b"another key").hexdigest()
OTHER = sha256(b"a third key").hexdigest()


def test_an_entry_has_a_name_a_key_and_limits() -> None:
    full, short = parse(
        f"""
        keys:
          team-a:
            sha256: {DIGEST.upper()}
            requests_at_once: 4
            requests_per_minute: 60
            models: [one, two]
            expires: 2027-01-31
          team-b:
            key: {PLAIN}
        """
    )

    assert (full.name, full.digests) == ("team-a", (bytes.fromhex(DIGEST),))
    assert (full.requests_at_once, full.requests_per_minute) == (4, 60)
    assert full.models == frozenset(("one", "two"))
    assert full.expires_at_s == datetime(2027, 1, 31, tzinfo=UTC).timestamp()
    assert (short.name, short.digests) == ("team-b", (digest_of(PLAIN.encode()),))
    assert (short.requests_at_once, short.requests_per_minute, short.models, short.expires_at_s) == (None,) * 4


def test_a_key_in_plain_text_has_as_many_characters_as_are_asked_for() -> None:
    (key,) = parse("keys: {a: {key: 0123456789abcdef}}")

    assert key.digests == (digest_of(b"0123456789abcdef"),)


def test_json_will_do_and_a_key_may_have_two_digests() -> None:
    """The second one is for the time in which clients change over. There may also be no keys."""
    (key,) = parse(json.dumps({"keys": {"a": {"sha256": [DIGEST, OTHER], "expires": "2027-01-31T12:00:00+02:00"}}}))

    assert key.digests == (bytes.fromhex(DIGEST), bytes.fromhex(OTHER))
    assert key.expires_at_s == datetime(2027, 1, 31, 10, tzinfo=UTC).timestamp()
    assert parse("keys:") == parse("keys: {}") == ()


@pytest.mark.parametrize("written", ["2027-01-31T12:00:00", "2027-01-31 12:00:00Z", "'2027-01-31T12:00:00'"])
def test_a_time_without_a_zone_is_utc(written: str) -> None:
    """However YAML takes it."""
    (key,) = parse(f"keys: {{a: {{sha256: {DIGEST}, expires: {written}}}}}")

    assert key.expires_at_s == datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expected `object`"),
        ("[]", "Expected `object`"),
        ("key: {}", "key"),
        ("keys: {a: {}}", "'a' needs either 'sha256' or 'key'"),
        (f"keys: {{a: {{sha256: {DIGEST}, key: {PLAIN}}}}}", "'a' needs either"),
        ("keys: {a: {key: short}}", "'a': 'key' must have at least 16 characters"),
        ("keys: {a: {key: 'with spaces in between it'}}", "'a': 'key' must have"),
        ("keys: {a: {sha256: abc}}", "'a': 'sha256' must be 64 hexadecimal digits"),
        ("keys: {a: {sha256: []}}", "'a': 'sha256' must be"),
        (f"keys: {{a: {{sha256: [{DIGEST}, abc]}}}}", "'a': 'sha256' must be"),
        (f"keys: {{'a b': {{sha256: {DIGEST}}}}}", "'a b' is no name"),
        (f"keys: {{1: {{sha256: {DIGEST}}}}}", "Expected `str`"),
        (f"keys: {{a: {{sha256: {DIGEST}, limit: 3}}}}", "unknown field `limit`"),
        (f"keys: {{a: {{sha256: {DIGEST}, requests_at_once: 0}}}}", ">= 1"),
        (f"keys: {{a: {{sha256: {DIGEST}, requests_per_minute: many}}}}", "requests_per_minute"),
        (f"keys: {{a: {{sha256: {DIGEST}, models: []}}}}", "'models' is empty"),
        (f"keys: {{a: {{sha256: {DIGEST}, expires: soon}}}}", "'a': 'expires' must be a date"),
        (f"keys: {{a: {{sha256: {DIGEST}, expires: 7}}}}", "'a': 'expires' must be a date"),
        (f"keys: {{a: {{sha256: {DIGEST}, expires: 2027-13-45}}}}", "makes no sense"),
        (f"keys: {{a: {{sha256: {DIGEST}}}, a: {{key: {PLAIN}}}}}", "'a' is written twice, line 1"),
        (f"keys: {{a: {{sha256: {DIGEST}}}, b: {{sha256: {DIGEST}}}}}", "'a' and 'b' have the same key"),
        ("keys: {a: {key: [", "not valid YAML"),
        (f"keys:\n  a:\n    key: {PLAIN}: 'x\n", "line 3"),  # YAML's own complaint would quote the line
        ("[" * 1000, "makes no sense"),
    ],
)
def test_a_mistake_is_named_and_no_key_is_shown(text: str, words: str) -> None:
    """One sentence, which may go to a log."""
    with pytest.raises(KeyFileError) as caught:
        parse(text)

    assert words in str(caught.value)
    assert PLAIN not in str(caught.value)
    assert DIGEST not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\xff")
    wrong = tmp_path / "wrong"
    wrong.write_text("keys: 3")

    for path, words in ((tmp_path / "none", "No such file"), (binary, "no text"), (wrong, "Expected")):
        with pytest.raises(KeyFileError, match=words) as caught:
            key_file.read(path)
        assert str(path) in str(caught.value)


def test_more_keys_than_can_be_labels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a line of several series."""
    monkeypatch.setattr(key_file, "MAX_KEYS", 1)
    parse(f"keys: {{a: {{sha256: {DIGEST}}}}}")

    with pytest.raises(KeyFileError, match="it has 2 keys, 1 may be"):
        parse(f"keys: {{a: {{sha256: {DIGEST}}}, b: {{sha256: {OTHER}}}}}")
