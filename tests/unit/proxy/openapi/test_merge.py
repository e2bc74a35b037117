from typing import Any

from baton.proxy.openapi.merge import merged

OURS: dict[str, Any] = {
    "info": {"title": "Baton"},
    "paths": {"/v1/chat/completions": {"post": {"description": "by hand"}}, "/ready": {"get": {}}},
    "components": {"schemas": {"Same": {"type": "object"}, "View": {"type": "string"}}, "securitySchemes": {"a": {}}},
}
REQUEST = {"properties": {"a": {"$ref": "#/components/schemas/Inner"}, "v": {"$ref": "#/components/schemas/View"}}}
ENGINES: dict[str, Any] = {
    "paths": {
        "/v1/chat/completions": {
            "post": {
                "requestBody": {"content": {"a/b": {"schema": {"$ref": "#/components/schemas/Request"}}}},
                "responses": {"200": {"description": "theirs"}, "422": {}},
            }
        },
        "/sleep": {"post": {"requestBody": {"schema": {"$ref": "#/components/schemas/Unused"}}}},
    },
    "components": {
        "schemas": {
            "Request": REQUEST,
            "Inner": {
                "anyOf": [{"$ref": "#/components/schemas/Request"}],
                "discriminator": {"mapping": {"x": "#/components/schemas/Leaf"}},
            },
            "Leaf": {},
            "Same": {"type": "object"},
            "View": {"type": "integer"},
            "Unused": {},
        }
    },
}
ROUTES = [("POST", "/v1/chat/completions"), ("POST", "/tokenize")]


def test_the_engines_description_takes_the_place_of_ours() -> None:
    """Answers that only a proxy gives stay described; nodes of ours never answer 422."""
    made = merged(OURS, ENGINES, ROUTES)
    operation = made["paths"]["/v1/chat/completions"]["post"]
    schemas = made["components"]["schemas"]

    assert "description" not in operation
    assert operation["responses"]["200"] == {"description": "theirs"}
    assert {"502", "503", "504"} <= operation["responses"].keys()
    assert "422" not in operation["responses"]
    assert made["components"]["securitySchemes"] == {"a": {}}
    assert made["info"] == {"title": "Baton"}
    # Operators' routes do not come at all; schemas with what they refer to, in circles too, under another name than ours.
    assert set(made["paths"]) == {"/v1/chat/completions", "/ready"}
    assert set(schemas) == {"Same", "View", "Request", "Inner", "Leaf", "EngineView"}
    assert schemas["View"] == {"type": "string"}
    assert schemas["Request"]["properties"]["v"] == {"$ref": "#/components/schemas/EngineView"}


def test_without_a_node_the_document_is_ours() -> None:
    assert merged(OURS, {}, ROUTES) == OURS
