"""Certificates for tests: an authority, and what it signs."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


class Authority:
    """Signs; each certificate and key lie in two files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority")
        certificate = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.path = folder / "authority.pem"
        self.path.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def sign(self, name: str) -> tuple[Path, Path]:
        """Make a certificate for 127.0.0.1 and its key, in place of those of the same name; return their files."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = self._builder(_named(name), key).add_extension(address, critical=False)
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        paths[0].write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        paths[1].write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return paths

    def context(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return the settings of a client that trusts it; the client shows a certificate, if one is given."""
        context = ssl.create_default_context(cafile=str(self.path))
        if certificate:
            context.load_cert_chain(*certificate)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
