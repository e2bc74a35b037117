from pathlib import Path

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.admin.about import settings


def test_settings_are_shown_without_secrets() -> None:
    config = ProxyConfig(
        admin_token_file=Path("/run/token"),
        decode=("http://me:hidden@10.0.0.1:8200", "http://10.0.0.2:8200"),
        otlp_endpoint="https://collector/v1/traces?key=hidden",
    )

    shown = settings(config)

    assert shown["admin_token_file"] == "/run/token"
    assert shown["decode"] == ["http://***@10.0.0.1:8200", "http://10.0.0.2:8200"]
    assert shown["otlp_endpoint"] == "https://collector/v1/traces?***"
    assert shown["workers"] == 1
    assert "hidden" not in repr(shown)
