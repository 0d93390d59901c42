"""Public keys of accounts, the signatures they check, and what else a DID document says.

Specifications: AT Protocol "Cryptography" (curves, low-S, ``did:key``) and "DID" (the parts of a DID document that
count). Two forms of keys occur in documents: *Multikey* (multibase of a multicodec prefix and the compressed point)
and the older ``EcdsaSecp256…VerificationKey2019`` (multibase of the bare point). Everything read here is hostile: a
document may be any JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import coincurve
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from indexer.errors import IdentityError
from indexer.syntax import is_handle

CurveName: TypeAlias = Literal["secp256k1", "p256"]
_Check: TypeAlias = Callable[[bytes, bytes], bool]  # (DER signature, message) -> does it hold

_DID_KEY: Final = "did:key:"
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS: Final = {letter: value for value, letter in enumerate(_BASE58)}
_LONGEST_KEY_TEXT: Final = 128  # an uncompressed point takes 89 letters; decoding time grows with the square
_LONGEST_URL: Final = 512
_ORIGIN: Final = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?/?",
    re.IGNORECASE | re.ASCII,
)
_ECDSA_SHA256: Final = ec.ECDSA(SHA256())


def base58_encode(data: bytes) -> str:
    """Base58btc text of ``data`` (without the multibase letter ``z``)."""
    number, letters = int.from_bytes(data), ""
    while number:
        number, digit = divmod(number, 58)
        letters = _BASE58[digit] + letters
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + letters


def base58_decode(text: str) -> bytes:
    """Bytes of base58btc ``text`` of at most 128 letters; raises IdentityError if it is longer or isn't base58."""
    if len(text) > _LONGEST_KEY_TEXT:
        raise IdentityError(f"a key of {len(text)} letters is too long")
    number = 0
    for letter in text:
        digit = _DIGITS.get(letter)
        if digit is None:
            raise IdentityError("a key is not base58btc")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)


def _load_secp256k1(encoded: bytes) -> tuple[bytes, _Check]:
    key = coincurve.PublicKey(encoded)
    return key.format(compressed=True), key.verify


def _load_p256(encoded: bytes) -> tuple[bytes, _Check]:
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), encoded)

    def check(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message, _ECDSA_SHA256)
        except InvalidSignature:
            return False
        return True

    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint), check


@dataclass(frozen=True, slots=True)
class _Curve:
    name: CurveName
    multicodec: bytes  # the varint that stands before the point in Multikey and did:key
    suite: str  # the type of the older kind of verification method
    order: int  # of the group
    load: Callable[[bytes], tuple[bytes, _Check]]


_CURVES: Final = (
    _Curve(
        "secp256k1",
        b"\xe7\x01",
        "EcdsaSecp256k1VerificationKey2019",
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
        _load_secp256k1,
    ),
    _Curve(
        "p256",
        b"\x80\x24",
        "EcdsaSecp256r1VerificationKey2019",
        0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
        _load_p256,
    ),
)
_BY_NAME: Final = {curve.name: curve for curve in _CURVES}
_BY_SUITE: Final = {curve.suite: curve for curve in _CURVES}


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that signs repositories: two are equal when curve and compressed ``point`` (33 bytes) are.

    Made by :func:`signing_key`, :meth:`parse` or :meth:`from_point`; making one takes longer than asking it once,
    so keep it.
    """

    curve: CurveName
    point: bytes
    _highest_s: int = field(repr=False, compare=False)
    _check: _Check = field(repr=False, compare=False)

    @classmethod
    def from_point(cls, curve: CurveName, encoded: bytes) -> PublicKey:
        """Key from a point in SEC 1 form, 33 bytes compressed or 65 uncompressed.

        Raises IdentityError if it is of another form or isn't on the curve.
        """
        if (len(encoded), encoded[:1]) not in ((33, b"\2"), (33, b"\3"), (65, b"\4")):
            raise IdentityError(f"a {curve} key of {len(encoded)} bytes is not a point")
        properties = _BY_NAME[curve]
        try:
            point, check = properties.load(encoded)
        except ValueError as error:
            raise IdentityError(f"a key is not a point of {curve}") from error
        return cls(curve, point, properties.order // 2, check)

    @classmethod
    def parse(cls, did_key: str) -> PublicKey:
        """Key from its text form ``did:key:z…``, as :meth:`did_key` writes it; raises IdentityError."""
        if not did_key.startswith(_DID_KEY):
            raise IdentityError("a key is not a did:key")
        return _from_multikey(did_key.removeprefix(_DID_KEY))

    def did_key(self) -> str:
        """Text form ``did:key:z…`` (multibase of multicodec and compressed point)."""
        return f"{_DID_KEY}z{base58_encode(_BY_NAME[self.curve].multicodec + self.point)}"

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` (r and s, 32 bytes big-endian each) is this key's over SHA-256 of ``message``.

        A signature with s above half the group's order is refused: AT Protocol admits only the lower of the two
        values that would do, or anyone could make a second valid signature out of the first.
        """
        if len(signature) != 64:
            return False
        r, s = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
        if s > self._highest_s:
            return False
        return self._check(encode_dss_signature(r, s), message)


def _from_multibase(text: object) -> bytes:
    if not isinstance(text, str) or not text.startswith("z"):
        raise IdentityError("a key is not base58btc multibase")
    return base58_decode(text[1:])


def _from_multikey(text: object) -> PublicKey:
    data = _from_multibase(text)
    for curve in _CURVES:
        if data.startswith(curve.multicodec) and len(data) == len(curve.multicodec) + 33:
            return PublicKey.from_point(curve.name, data[len(curve.multicodec) :])
    raise IdentityError("a key is of no kind that signs repositories")


def _from_method(method: dict[str, object]) -> PublicKey:
    """Key of one verification method, in either form."""
    kind, text = method.get("type"), method.get("publicKeyMultibase")
    if kind == "Multikey":
        return _from_multikey(text)
    curve = _BY_SUITE.get(kind) if isinstance(kind, str) else None
    if curve is None:
        raise IdentityError("a verification method is of an unknown type")
    return PublicKey.from_point(curve.name, _from_multibase(text))


def _entries(did_document: object, member: str, did: object, fragment: str) -> Iterator[dict[str, object]]:
    """Objects in the list ``member`` whose id is ``#fragment``, alone or after the DID."""
    entries = did_document.get(member) if isinstance(did_document, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("id") in (f"#{fragment}", f"{did}#{fragment}"):
            yield entry


def signing_key(did_document: object, did: str) -> PublicKey:
    """Key that signs the repository of ``did``: the first usable ``#atproto`` verification method.

    ``did_document`` is decoded JSON of any shape. A method that names another controller doesn't count. Raises
    IdentityError if the document is another DID's or holds no usable key.
    """
    if not isinstance(did_document, dict) or did_document.get("id") != did:
        raise IdentityError(f"the DID document of {did} is not its own")
    problem = "no #atproto verification method"
    for method in _entries(did_document, "verificationMethod", did, "atproto"):
        if method.get("controller", did) != did:
            problem = "its controller is another"
            continue
        try:
            return _from_method(method)
        except IdentityError as error:
            problem = str(error)
    raise IdentityError(f"the DID document of {did} has no signing key: {problem}")


def _origin(url: object) -> str | None:
    """``scheme://host[:port]`` of an HTTP URL that says no more than that, else None."""
    match = _ORIGIN.fullmatch(url) if isinstance(url, str) and len(url) <= _LONGEST_URL else None
    if match is None or int(match["port"] or 0) > 65535:
        return None
    return match[0].rstrip("/").lower()


def pds_endpoint(did_document: object) -> str | None:
    """Origin (``https://host[:port]``, no path) of the account's PDS, or None if the document names none.

    The first ``#atproto_pds`` service of type ``AtprotoPersonalDataServer`` counts. Whether the host may be called
    is for the caller to decide.
    """
    did = did_document.get("id") if isinstance(did_document, dict) else None
    for service in _entries(did_document, "service", did, "atproto_pds"):
        if service.get("type") == "AtprotoPersonalDataServer":
            return _origin(service.get("serviceEndpoint"))
    return None


def handle_of(did_document: object) -> str | None:
    """Handle the document claims, in lower case, or None: the first ``at://`` of ``alsoKnownAs``, unproven."""
    names = did_document.get("alsoKnownAs") if isinstance(did_document, dict) else None
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name.startswith("at://"):
            handle = name.removeprefix("at://").lower()
            return handle if is_handle(handle) else None
    return None
