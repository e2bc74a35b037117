"""What the gateway lets through is what clients may ask for."""

import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.passthrough.routes import ROUTES
from baton.proxy.request.endpoints import DATA_ROUTES
from tests.support.kubernetes.render import Object, named, render

INSIDE = ("/admin/state", "/admin/nodes", "/metrics", "/ready", "/dashboard", "/docs", "/openapi.json", "/")


def _rules() -> list[Object]:
    return named(render("cuda"), "HTTPRoute", "baton")["spec"]["rules"]  # type: ignore[no-any-return]


def _passes(path: str) -> bool:
    for match in (match for rule in _rules() for match in rule["matches"]):
        kind, value = match["path"]["type"], match["path"]["value"]
        if path == value or (kind == "PathPrefix" and path.startswith(f"{value}/")):
            return True
    return False


@pytest.mark.parametrize("path", sorted({*DATA_ROUTES, *(route.template for route in ROUTES), "/v1/models"}))
def test_every_route_for_clients_passes(path: str) -> None:
    """Those that are disaggregated and those that are passed to a node."""
    assert _passes(path.replace("{response_id}", "resp_1"))


@pytest.mark.parametrize("path", INSIDE)
def test_what_shows_or_changes_the_deployment_does_not(path: str) -> None:
    """They are for people inside."""
    assert not _passes(path)


def test_it_leads_to_the_proxies_service() -> None:
    service = named(render("cuda"), "Service", "baton-proxy")

    wanted = [{"name": "baton-proxy", "port": service["spec"]["ports"][0]["port"]}]
    assert [rule["backendRefs"] for rule in _rules()] == [wanted] * len(_rules())


def test_the_proxy_gives_up_before_the_gateway_does() -> None:
    """Its answer says why; a gateway's does not."""
    for rule in _rules():
        assert (
            min(float(each.removesuffix("s")) for each in rule["timeouts"].values()) > ProxyConfig().request_timeout_s
        )
