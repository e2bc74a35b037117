import pytest

from baton.loadtest.client.http import parse_address
from baton.loadtest.errors import UsageError


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "authority"),
    [
        ("http://a:8000", "a", 8000, "", "a:8000"),
        ("http://a:8000/v1/", "a", 8000, "", "a:8000"),
        ("https://a/openai/v1", "a", 443, "/openai", "a"),
        ("http://[::1]:9", "::1", 9, "", "[::1]:9"),
    ],
)
def test_an_address_is_read(url: str, host: str, port: int, prefix: str, authority: str) -> None:
    """With or without `/v1`, as people copy it."""
    got = parse_address(url)

    assert (got.host, got.port, got.prefix, got.authority) == (host, port, prefix, authority)


WRONG = ("a:8000", "ftp://a", "http://", "http://a:b", "http://ä")
SECRETS = ("http://me:s3cret@a", "http://a?x=1", "http://a#x")


@pytest.mark.parametrize(("url", "words"), [(url, url) for url in WRONG] + [(url, "no base URL") for url in SECRETS])
def test_what_is_no_address_is_refused(url: str, words: str) -> None:
    """With the words that were given, unless they may be a secret: they would be written to the reports."""
    with pytest.raises(UsageError, match=words) as caught:
        parse_address(url)

    assert "s3cret" not in str(caught.value)
