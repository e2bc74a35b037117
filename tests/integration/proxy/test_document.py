"""The OpenAPI document of a proxy in front of nodes."""

import json

from tests.integration.proxy.test_admin import ROUTES
from tests.support.cluster import cluster

ENGINES = {
    "paths": {"/v1/messages": {"post": {"requestBody": {"$ref": "#/components/schemas/Asked"}, "responses": {}}}},
    "components": {"schemas": {"Asked": {"type": "object"}}},
}


async def test_the_document_carries_a_nodes_schemas() -> None:
    """It is asked once; every route that is served is there, described by the node or by hand; the admin API's with its token.

    A node without a document is no problem, whatever it answers instead.
    """
    async with cluster() as running:
        node = running.decode[0]
        missing = await running.http.get("/openapi.json")
        node.passed["GET", "/openapi.json"] = 200, b"text/html", b"<p>"
        odd = await running.http.get("/openapi.json")
        node.was_passed.clear()
        node.passed["GET", "/openapi.json"] = 200, b"application/json", json.dumps(ENGINES).encode()
        await running.http.get("/openapi.json")
        document = (await running.http.get("/openapi.json")).json()
        asked = len(node.was_passed)

    for each in (missing, odd):
        assert "/v1/chat/completions" in each.json()["paths"]
    assert asked == 1
    assert document["components"]["schemas"]["Asked"] == {"type": "object"}
    assert document["paths"]["/v1/messages"]["post"]["requestBody"] == {"$ref": "#/components/schemas/Asked"}
    assert {"/v1/responses", "/tokenize", "/v1/responses/{response_id}"} <= document["paths"].keys()
    for method, path in ROUTES:
        assert document["paths"][path][method.lower()]["security"] == [{"HTTPBearer": []}]
    assert {"NodeAddress", "NodeView", "AdminState", "FanOutResult"} <= set(document["components"]["schemas"])


async def test_what_the_proxys_own_routes_answer_is_in_the_document() -> None:
    """Status and type of content, of refusals too."""
    asked = {
        "/health": ("GET", "/health"),
        "/metrics": ("GET", "/metrics"),
        "/version": ("GET", "/version"),
        "/v1/models": ("GET", "/v1/models"),
        "/v1/models/{model}": ("GET", "/v1/models/unheard-of"),
        "/admin/nodes": ("GET", "/admin/nodes"),
        "/ready": ("GET", "/ready"),
    }
    async with cluster(decode=0) as running:
        document = (await running.http.get("/openapi.json")).json()
        got = {path: await running.http.request(*call) for path, call in asked.items()}

    for path, answer in got.items():
        described = document["paths"][path]["get"]["responses"][str(answer.status_code)]
        if answer.status_code == 200:
            kind = answer.headers.get("content-type", "").partition(";")[0]
            assert list(described.get("content", {})) == ([kind] if kind else []), path
