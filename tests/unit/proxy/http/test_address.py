import pytest

from baton.proxy.http.address import address_of, is_base_url
from baton.proxy.nodes.discovery import SourceError
from baton.proxy.nodes.registry import configured_sources


@pytest.mark.parametrize(
    "text", ["http://a:8100", "https://10.0.0.1", "http://[::1]:8100", "http://prefill_0:1/", "http://p.svc.:80"]
)
def test_the_address_of_a_node_is_one(text: str) -> None:
    assert is_base_url(text)
    assert list(configured_sources([text, f"{text.rstrip('/')}/prefix"], 1.0))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:8100",
        "http://",
        "http://a b",
        "http://a:b",
        "http://a:70000",
        "ftp://a",
        "http://u:p@a",
        "http://a?b",
        "http://a#b",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """By the admin API and in the configuration, before a node is looked for under it."""
    assert not is_base_url(text)
    with pytest.raises(SourceError, match="is not the URL of a node"):
        list(configured_sources([text], 1.0))


def test_an_added_node_has_no_path() -> None:
    """Paths of the node API follow it."""
    assert not is_base_url("http://a:8100/prefix")


@pytest.mark.parametrize("text", ["/v1", "baton://a"])
def test_without_a_host_or_a_port_nothing_is_sent(text: str) -> None:
    with pytest.raises(ValueError, match="is no address of a server"):
        address_of(text)
