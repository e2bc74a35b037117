"""The OpenAPI document of a proxy in front of nodes."""

import json

from tests.support.cluster import cluster

ENGINES = {
    "paths": {"/v1/messages": {"post": {"requestBody": {"$ref": "#/components/schemas/Asked"}, "responses": {}}}},
    "components": {"schemas": {"Asked": {"type": "object"}}},
}


async def test_the_document_carries_a_nodes_schemas() -> None:
    """It is asked once; every route that is served is there, described by the node or by hand."""
    async with cluster() as running:
        node = running.decode[0]
        node.passed["GET", "/openapi.json"] = 200, b"application/json", json.dumps(ENGINES).encode()
        await running.http.get("/openapi.json")
        document = (await running.http.get("/openapi.json")).json()
        asked = len(node.was_passed)

    assert asked == 1
    assert document["components"]["schemas"]["Asked"] == {"type": "object"}
    assert document["paths"]["/v1/messages"]["post"]["requestBody"] == {"$ref": "#/components/schemas/Asked"}
    assert {"/v1/responses", "/tokenize", "/v1/responses/{response_id}", "/admin/nodes"} <= document["paths"].keys()


async def test_a_node_without_a_document_is_no_problem() -> None:
    """Whatever it answers instead."""
    async with cluster() as running:
        missing = await running.http.get("/openapi.json")
        running.decode[0].passed["GET", "/openapi.json"] = 200, b"text/html", b"<p>"
        odd = await running.http.get("/openapi.json")

    assert missing.status_code == odd.status_code == 200
    assert "/v1/chat/completions" in odd.json()["paths"]
