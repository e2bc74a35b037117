import pytest

from baton.proxy.passthrough.routes import route_of


@pytest.mark.parametrize(
    ("method", "path", "template", "response_id"),
    [
        ("POST", "/tokenize", "/tokenize", ""),
        ("GET", "/v1/responses/resp_1", "/v1/responses/{response_id}", "resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", "/v1/responses/{response_id}/cancel", "resp_1"),
    ],
)
def test_a_route_is_known_by_method_and_path(method: str, path: str, template: str, response_id: str) -> None:
    route = route_of(method, path)

    assert route is not None
    assert (route.template, route.response_id) == (template, response_id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tokenize"),
        ("POST", "/sleep"),
        ("POST", "/collective_rpc"),
        ("POST", "/start_profile"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/"),
        ("GET", "/v1/responses/a/b"),
        ("GET", "/v1/responses/resp_1/cancel"),
    ],
)
def test_nothing_else_is_passed(method: str, path: str) -> None:
    """Operators' routes above all."""
    assert route_of(method, path) is None
