"""An authority of our own, and the certificates that it signs for servers and clients."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = "127.0.0.1"

#: What the key of an authority is for.
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Signed(NamedTuple):
    """The files of one certificate and of its key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs what it is asked to; ``file`` is its own certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate(self._name, self._key.public_key()))

    def signs(self, name: str, host: str = HERE, days: float = 1) -> Signed:
        """A certificate for *host*, an address or a name, in files that begin with *name*.

        It is good for so many *days* more, and has been for one.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        files = Signed(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.certificate.write_bytes(self._certificate(who, key.public_key(), host, days))
        private = serialization.PrivateFormat.PKCS8
        files.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
        )
        return files

    def _certificate(
        self,
        who: x509.Name,
        key: ec.EllipticCurvePublicKey,
        host: str | None = None,
        days: float = 1,
    ) -> bytes:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(who)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + days * day)
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            # Without the rest Python takes no certificate, from 3.13 on.
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if host is None:
            builder = builder.add_extension(_SIGNS, critical=True)
        else:
            named = x509.SubjectAlternativeName([_address(host)])
            builder = builder.add_extension(named, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
