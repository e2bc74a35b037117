import pytest

from baton.deploy.own_url import own_url


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("::1", "http://[::1]:9"),
        ("node.example", "http://node.example:9"),
    ],
)
def test_what_listens_everywhere_is_asked_at_the_loopback_of_its_family(host: str, url: str) -> None:
    """A proxy on `::` takes IPv6 alone: 127.0.0.1 would refuse."""
    assert own_url(host, 9) == url
