"""TLS's files: what is wrong with them is said, and a new certificate counts only when its key is there too."""

import shutil
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http_server.tls import Tls, TlsError, TlsFiles, context_of, files_of
from tests.support.certificates import Authority
from tests.support.cluster import until_true


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_configuration_names_files_or_none() -> None:
    """The key may stand in the certificate's file; without a certificate there is nothing to be a key of."""
    one, other = Path("one"), Path("other")

    assert files_of(ProxyConfig()) is None
    assert files_of(ProxyConfig(tls_cert_file=one)) == TlsFiles(certificate=one, key=one)
    assert files_of(ProxyConfig(tls_cert_file=one, tls_key_file=other)) == TlsFiles(certificate=one, key=other)
    with pytest.raises(TlsError, match=r"tls_key_file is set and proxy\.tls_cert_file is not"):
        files_of(ProxyConfig(tls_key_file=other))
    with pytest.raises(TlsError, match="tls_client_ca_file is set"):
        files_of(ProxyConfig(tls_client_ca_file=other))


def test_clients_need_a_certificate_only_if_authorities_are_named(authority: Authority) -> None:
    certificate, key = authority.sign("proxy")
    both = certificate.with_name("both")
    both.write_bytes(certificate.read_bytes() + key.read_bytes())

    plain = context_of(TlsFiles(certificate=both, key=both))
    mutual = context_of(TlsFiles(certificate=certificate, key=key, client_authorities=authority.path))

    assert (plain.verify_mode, mutual.verify_mode) == (ssl.CERT_NONE, ssl.CERT_REQUIRED)
    assert plain.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("proxy")
    _, stranger = authority.sign("other")
    empty, missing, locked = tmp_path / "empty", tmp_path / "missing", tmp_path / "locked"
    empty.touch()
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"a password")
    locked.write_bytes(loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))

    for files, words in (
        (TlsFiles(certificate=missing, key=key), "missing: No such file"),
        (TlsFiles(certificate=certificate, key=missing), "missing: No such file"),
        (TlsFiles(certificate=Path("no\0name"), key=key), "null byte"),
        (TlsFiles(certificate=empty, key=key), "empty cannot be used"),
        (TlsFiles(certificate=certificate, key=stranger), "KEY_VALUES_MISMATCH"),
        (TlsFiles(certificate=certificate, key=locked), "locked"),
        (TlsFiles(certificate=certificate, key=key, client_authorities=empty), "authorities"),
    ):
        with pytest.raises(TlsError, match=words):
            context_of(files)


async def test_a_certificate_and_its_key_are_taken_together(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While only one of the two files is the new one, the old pair stays."""
    certificate, key = authority.sign("proxy")
    new_certificate, new_key = authority.sign("new")
    tls = Tls(TlsFiles(certificate=certificate, key=key), look_s=0.01)
    before = tls.context
    tls.start()
    try:
        shutil.copy(new_certificate, certificate)
        await until_true(lambda: "cannot be used any more" in caplog.text)
        amid, replaced_amid = tls.context, "replaced" in caplog.text
        shutil.copy(new_key, key)
        await until_true(lambda: tls.context is not before)
    finally:
        await tls.stop()

    assert (amid is before, replaced_amid) == (True, False)
    assert "TLS certificate replaced" in caplog.text
