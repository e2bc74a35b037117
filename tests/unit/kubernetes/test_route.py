"""What the gateway lets through is what clients may ask for."""

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


def test_routes_for_clients_pass_and_no_others() -> None:
    """Those that are disaggregated and those that are passed to a node; what shows or changes the deployment is for people inside."""
    wanted = {*DATA_ROUTES, *(route.template for route in ROUTES), "/v1/models"}

    assert [path for path in wanted if not _passes(path.replace("{response_id}", "resp_1"))] == []
    assert [path for path in INSIDE if _passes(path)] == []


def test_it_leads_to_the_proxies_service() -> None:
    service = named(render("cuda"), "Service", "baton-proxy")

    wanted = [{"name": "baton-proxy", "port": service["spec"]["ports"][0]["port"]}]
    assert [rule["backendRefs"] for rule in _rules()] == [wanted] * len(_rules())


def test_the_proxy_gives_up_before_the_gateway_does() -> None:
    """Its answer says why; a gateway's does not."""
    limits = [float(each.removesuffix("s")) for rule in _rules() for each in rule["timeouts"].values()]

    assert min(limits) > ProxyConfig().request_timeout_s
