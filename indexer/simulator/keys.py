"""Signing keys of simulated accounts: secp256k1 and P-256, deterministic signatures, and their public forms.

Signatures are 64 bytes r‖s over SHA-256 of the message, low-S, with the nonce of RFC 6979: the same key and message
always give the same bytes. Public forms follow the AT Protocol cryptography specification (``did:key``, Multikey)
and, for old documents, the W3C vocabulary ``EcdsaSecp256k1VerificationKey2019`` / ``EcdsaSecp256r1…``.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

from coincurve import PrivateKey
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class SigningKey(Protocol):
    """What an account signs its commits with."""

    curve: str
    multicodec: bytes
    legacy_type: str

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over SHA-256 of ``message``."""

    def public(self, *, compressed: bool) -> bytes:
        """The public point: 33 bytes compressed, 65 uncompressed."""


class Secp256k1Key:
    """A key on secp256k1, made from any secret bytes."""

    curve = "secp256k1"
    multicodec = b"\xe7\x01"
    legacy_type = "EcdsaSecp256k1VerificationKey2019"

    def __init__(self, secret: bytes) -> None:
        self._key = PrivateKey(sha256(secret).digest())

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over SHA-256 of ``message``."""
        return bytes(self._key.sign_recoverable(message)[:64])

    def public(self, *, compressed: bool) -> bytes:
        """The public point: 33 bytes compressed, 65 uncompressed."""
        return bytes(self._key.public_key.format(compressed=compressed))


class P256Key:
    """A key on P-256 (secp256r1), made from any secret bytes."""

    curve = "p256"
    multicodec = b"\x80\x24"
    legacy_type = "EcdsaSecp256r1VerificationKey2019"

    def __init__(self, secret: bytes) -> None:
        self._key = ec.derive_private_key(
            int.from_bytes(sha256(secret).digest(), "big") % (P256_ORDER - 1) + 1, ec.SECP256R1()
        )

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over SHA-256 of ``message``."""
        r, s = decode_dss_signature(self._key.sign(message, ec.ECDSA(SHA256(), deterministic_signing=True)))
        return r.to_bytes(32, "big") + min(s, P256_ORDER - s).to_bytes(32, "big")

    def public(self, *, compressed: bool) -> bytes:
        """The public point: 33 bytes compressed, 65 uncompressed."""
        form = PublicFormat.CompressedPoint if compressed else PublicFormat.UncompressedPoint
        return self._key.public_key().public_bytes(Encoding.X962, form)


def base58(data: bytes) -> str:
    """Base58 with Bitcoin's alphabet."""
    number = int.from_bytes(data, "big")
    out = ""
    while number:
        number, digit = divmod(number, 58)
        out = _BASE58[digit] + out
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + out


def multikey(key: SigningKey) -> str:
    """``publicKeyMultibase`` of a Multikey: multibase base58btc of multicodec prefix and compressed point."""
    return "z" + base58(key.multicodec + key.public(compressed=True))


def did_key(key: SigningKey) -> str:
    """The ``did:key`` of a key."""
    return "did:key:" + multikey(key)


def legacy_multibase(key: SigningKey) -> str:
    """``publicKeyMultibase`` of the old document form: base58btc of the uncompressed point, without prefix."""
    return "z" + base58(key.public(compressed=False))
