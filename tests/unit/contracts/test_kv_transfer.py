from typing import Any

import pytest

from contracts.kv_transfer import KEY, Role, TransferParams, TransferParamsError, new_transfer_id, sign, verify
from contracts.secret import ClusterSecret

SECRET = ClusterSecret(b"0123456789abcdef")
PARAMS = TransferParams(transfer_id="ab" * 16, role="decode", peer="tcp://10.0.0.1:9100")


@pytest.mark.parametrize(("role", "peer"), [("prefill", ""), ("decode", "tcp://10.0.0.1:9100")])
def test_what_is_signed_can_be_verified(role: Role, peer: str) -> None:
    """Both legs' parameters survive the trip."""
    params = TransferParams(transfer_id=new_transfer_id(), role=role, peer=peer)

    assert verify(sign(params, SECRET), SECRET) == params


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", "cd" * 16), ("role", "prefill"), ("peer", "tcp://evil:1"), ("sig", "0" * 64), ("sig", "é")],
)
def test_a_changed_field_breaks_the_signature(name: str, value: str) -> None:
    """Nobody can point a node at another peer, role or transfer."""
    signed = changed(**{name: value})

    with pytest.raises(TransferParamsError, match="not signed"):
        verify(signed, SECRET)


def test_another_clusters_signature_is_refused() -> None:
    """Two deployments do not accept each other's transfers."""
    with pytest.raises(TransferParamsError, match="not signed"):
        verify(sign(PARAMS, ClusterSecret(b"another-cluster!")), SECRET)


def test_fields_cannot_be_shifted_into_each_other() -> None:
    """The signature covers where one field ends and the next begins."""
    with pytest.raises(TransferParamsError):
        verify(changed(id="ab" * 15, role="ab\ndecode"), SECRET)


@pytest.mark.parametrize("value", [None, "text", [], {}, {KEY: None}, {KEY: "text"}, {"do_remote_decode": True}])
def test_what_is_not_ours_is_refused(value: object) -> None:
    """Other connectors' parameters and rubbish are named as such."""
    with pytest.raises(TransferParamsError, match="carries no 'baton' object"):
        verify(value, SECRET)


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_another_protocol_version_is_refused_by_name(version: object) -> None:
    """The sentence names both versions."""
    with pytest.raises(TransferParamsError, match="this node speaks 1"):
        verify(changed(v=version), SECRET)


@pytest.mark.parametrize("transfer_id", [None, 5, "", "AB" * 16, "ab" * 15, "zz" * 16, "ab" * 16 + "\n"])
def test_a_malformed_transfer_id_is_refused(transfer_id: object) -> None:
    """Ids are 32 lower-case hex digits and nothing else."""
    with pytest.raises(TransferParamsError, match="transfer id"):
        verify(changed(id=transfer_id), SECRET)


@pytest.mark.parametrize(
    ("name", "value"), [("role", "both"), ("role", None), ("peer", None), ("peer", 5), ("sig", None)]
)
def test_malformed_fields_are_refused(name: str, value: object) -> None:
    """Wrong types are refused before the signature is computed."""
    with pytest.raises(TransferParamsError, match="malformed"):
        verify(changed(**{name: value}), SECRET)


def test_transfer_ids_are_random() -> None:
    """Ids of different transfers do not meet."""
    assert len({new_transfer_id() for _ in range(1000)}) == 1000


def changed(**fields: Any) -> dict[str, Any]:
    """Return signed parameters with some fields replaced afterwards."""
    return {KEY: sign(PARAMS, SECRET)[KEY] | fields}
