"""Which account a request's key opens, before and after the file has changed."""

import pytest

from baton.proxy.auth.counts import counts_of
from baton.proxy.auth.errors import Denial, InvalidKeyError
from baton.proxy.auth.key_file import Key, digest_of
from baton.proxy.auth.keyring import Keyring, without_credentials

Headers = list[tuple[bytes, bytes]]


def key(name: str, *shown: bytes, at_once: int | None = None, expires_at_s: float | None = None) -> Key:
    return Key(name=name, digests=tuple(map(digest_of, shown)), requests_at_once=at_once, expires_at_s=expires_at_s)


def bearer(shown: bytes) -> Headers:
    return [(b"host", b"x"), (b"authorization", b"Bearer " + shown)]


@pytest.fixture
def ring() -> Keyring:
    made = Keyring(counts_of(None))
    made.adopt([key("a", b"one", b"uno"), key("b", b"two"), key("c", b"old", expires_at_s=1.0)])
    return made


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (bearer(b"one"), "a"),
        (bearer(b"uno"), "a"),
        ([(b"authorization", b"bearer two")], "b"),
        ([(b"authorization", b"BEARER  two ")], "b"),
        ([(b"x-api-key", b"one")], "a"),
        ([(b"x-api-key", b"one"), (b"authorization", b"Bearer two")], "b"),
        ([(b"authorization", b"Basic xyz"), (b"x-api-key", b"one")], "a"),
        ([(b"x-api-key", b"one"), (b"x-api-key", b"two")], "a"),
    ],
)
def test_a_key_opens_its_account(ring: Keyring, headers: Headers, name: str) -> None:
    """As OpenAI's clients show it, or as Anthropic's do."""
    assert ring.account_of(headers).name == name


@pytest.mark.parametrize(
    ("headers", "denial"),
    [
        ([], Denial.MISSING),
        ([(b"authorization", b"Basic xyz")], Denial.MISSING),
        ([(b"authorization", b"one")], Denial.MISSING),
        (bearer(b""), Denial.UNKNOWN),
        (bearer(b"on"), Denial.UNKNOWN),
        (bearer(b"ONE"), Denial.UNKNOWN),
        ([(b"x-api-key", b"three")], Denial.UNKNOWN),
        (bearer(b"old"), Denial.EXPIRED),
    ],
)
def test_anything_else_opens_none(ring: Keyring, headers: Headers, denial: Denial) -> None:
    """And the answer does not repeat it. An expired key has a name, so that its owner can be told."""
    with pytest.raises(InvalidKeyError) as caught:
        ring.account_of(headers)

    assert caught.value.denial is denial
    assert caught.value.name == ("c" if denial is Denial.EXPIRED else "")


def test_a_new_file_keeps_what_was_counted_of_keys_that_stay(ring: Keyring) -> None:
    """A key that was replaced under the same name is the same account; what went is known no more."""
    ring.account_of(bearer(b"one")).enter()
    changes = ring.adopt([key("a", b"new", at_once=1), key("d", b"three")])

    assert changes == {"added": ["d"], "removed": ["b", "c"], "changed": ["a"]}
    assert ring.account_of(bearer(b"new")).is_used
    assert len(ring) == 2
    for gone in (b"one", b"two"):
        with pytest.raises(InvalidKeyError):
            ring.account_of(bearer(gone))


def test_a_key_that_comes_back_while_its_requests_go_on_finds_them_counted(ring: Keyring) -> None:
    """Taken out and put back is no way around a limit."""
    before = ring.account_of(bearer(b"one"))
    before.enter()
    ring.adopt([])
    ring.adopt([])
    ring.adopt([key("a", b"one")])

    assert ring.account_of(bearer(b"one")) is before


def test_nodes_see_no_credentials() -> None:
    headers = [(b"authorization", b"Bearer x"), (b"x-api-key", b"y"), (b"traceparent", b"z")]

    assert without_credentials(headers) == [(b"traceparent", b"z")]
