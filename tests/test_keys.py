"""Keys and signatures: both curves, both forms in documents, low s only; and documents that may be any JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import coincurve
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import IdentityError
from indexer.keys import PublicKey, base58_decode, base58_encode, handle_of, pds_endpoint, signing_key

CAPTURE = Path(__file__).parent / "captures" / "pds-a"
DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
K256, P256 = "EcdsaSecp256k1VerificationKey2019", "EcdsaSecp256r1VerificationKey2019"

# AT Protocol's signature vectors: did:key, the older form, signature, whether it is valid (else its s is high).
MESSAGE = base64.b64decode("oWVoZWxsb2V3b3JsZA==")
P256_KEY = (
    "did:key:zDnaembgSGUhZULN2Caob4HLJPaxBh92N7rtH21TErzqf8HQo",
    "zxdM8dSstjrpZaRUwBmDvjGXweKuEMVN95A9oJBFjkWMh",
)
K256_KEY = (
    "did:key:zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwc",
    "z25z9DTpsiYYJKGsWmSPJK2NFN8PcJtZig12K59UgW7q5t",
)
VECTORS = [
    (P256, *P256_KEY, "2vZNsG3UKvvO/CDlrdvyZRISOFylinBh0Jupc6KcWoJWExHptCfduPleDbG3rko3YZnn9Lw0IjpixVmexJDegg==", True),
    (
        P256,
        *P256_KEY,
        "2vZNsG3UKvvO/CDlrdvyZRISOFylinBh0Jupc6KcWoKp7O4VS9giSAah8k5IUbXIW00SuOrjfEqQ9HEkN9JGzw==",
        False,
    ),
    (K256, *K256_KEY, "5WpdIuEUUfVUYaozsi8G0B3cWO09cgZbIIwg1t2YKdUn/FEznOndsz/qgiYb89zwxYCbB71f7yQK5Lr7NasfoA==", True),
    (
        K256,
        *K256_KEY,
        "5WpdIuEUUfVUYaozsi8G0B3cWO09cgZbIIwg1t2YKdXYA67MYxYiTMAVfdnkDCMN9S5B3vHosRe07aORmoshoQ==",
        False,
    ),
]
ORDERS = {
    "secp256k1": 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
    "p256": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
}


def document(*methods: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A DID document with these verification methods."""
    return {"id": DID, "verificationMethod": [*methods], **members}


def method(kind: str, text: Any, **changes: Any) -> dict[str, Any]:
    """A verification method."""
    return {"id": f"{DID}#atproto", "type": kind, "controller": DID, "publicKeyMultibase": text, **changes}


def raw(signature: bytes) -> tuple[int, int]:
    """r and s of a DER signature."""
    r, s = decode_dss_signature(signature)
    return r, s


def joined(r: int, s: int) -> bytes:
    """A signature as AT Protocol writes it."""
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def signed(curve: str, message: bytes) -> tuple[PublicKey, int, int]:
    """A key of this curve and its signature, s as low as can be."""
    if curve == "secp256k1":
        k256 = coincurve.PrivateKey(b"\7" * 32)
        key, (r, s) = PublicKey.from_point("secp256k1", k256.public_key.format()), raw(k256.sign(message))
    else:
        p256 = ec.derive_private_key(7, ec.SECP256R1())
        point = p256.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        key, (r, s) = PublicKey.from_point("p256", point), raw(p256.sign(message, ec.ECDSA(SHA256())))
    return key, r, min(s, ORDERS[curve] - s)


@pytest.mark.parametrize(("suite", "did_key", "multibase", "signature", "valid"), VECTORS)
def test_signatures_are_judged_as_by_the_interoperability_vectors(
    suite: str, did_key: str, multibase: str, signature: str, valid: bool
) -> None:
    """Every form of a key gives the same key, and it judges signatures as every other implementation does."""
    key = PublicKey.parse(did_key)
    assert key == signing_key(document(method(suite, multibase)), DID)
    assert key == signing_key(document(method("Multikey", did_key.removeprefix("did:key:"))), DID)
    assert key.did_key() == did_key
    assert key.verify(MESSAGE, base64.b64decode(signature)) is valid


@pytest.mark.parametrize("curve", ["secp256k1", "p256"])
def test_of_the_two_signatures_only_the_lower_counts(curve: str) -> None:
    """A signature whose s is high is refused, although it satisfies the equation; so is any other form of it."""
    key, r, s = signed(curve, b"message")
    order = ORDERS[curve]
    assert key.verify(b"message", joined(r, s))
    assert not key.verify(b"message", joined(r, order - s))
    assert not key.verify(b"other message", joined(r, s))
    assert not key.verify(b"message", joined(r, s)[:-1])
    assert not key.verify(b"message", joined(r, s) + b"\0")
    assert not key.verify(b"message", joined(r, s)[:32] + b"\0" + joined(r, s)[32:])
    assert not key.verify(b"message", b"")
    for bad_r, bad_s in ((0, s), (r, 0), (0, 0), (order, s), (r, order), (order + 1, s), (2**256 - 1, s)):
        assert not key.verify(b"message", joined(bad_r, bad_s))


@pytest.mark.parametrize("curve", ["secp256k1", "p256"])
@given(bit=st.integers(0, 511))
def test_no_bit_of_a_signature_is_free(curve: str, bit: int) -> None:
    """A signature with any one bit flipped is refused."""
    key, r, s = signed(curve, b"message")
    flipped = (int.from_bytes(joined(r, s), "big") ^ (1 << bit)).to_bytes(64, "big")
    assert not key.verify(b"message", flipped)


@pytest.mark.parametrize("curve", ["secp256k1", "p256"])
def test_a_key_survives_as_text(curve: str) -> None:
    """What is stored as text comes back equal and checks the same signatures; keys of other points are others."""
    key, r, s = signed(curve, b"message")
    back = PublicKey.parse(key.did_key())
    assert back == key
    assert hash(back) == hash(key)
    assert back.verify(b"message", joined(r, s))
    assert len(key.point) == 33
    assert key != PublicKey.parse(P256_KEY[0])
    assert key != PublicKey.parse(K256_KEY[0])


def test_captured_documents_give_keys_hosts_and_handles() -> None:
    """The documents of a real directory, older form and uncompressed, are understood in full."""
    documents = json.loads((CAPTURE / "did-docs.json").read_text())
    assert len(documents) == 8
    for did, found in documents.items():
        assert signing_key(found, did).curve == "secp256k1"
        assert pds_endpoint(found) == "http://localhost:2583"
        assert f"at://{handle_of(found)}" == found["alsoKnownAs"][0]
    assert len({signing_key(found, did) for did, found in documents.items()}) == 8


def test_the_first_usable_method_of_the_account_counts() -> None:
    """Other methods, methods of another controller and unusable ones are passed over; the id may be short or long."""
    good = method("Multikey", K256_KEY[0][8:])
    other = method("Multikey", P256_KEY[0][8:])
    passed = [
        "text",
        None,
        {**other, "id": "#other"},
        {**other, "id": "#atproto_label"},
        {**other, "id": "did:plc:somebody#atproto"},
        {**other, "controller": "did:plc:somebody"},
        {**other, "type": "JsonWebKey2020"},
        {**other, "publicKeyMultibase": "zzz"},
    ]
    for identifier in ("#atproto", f"{DID}#atproto"):
        found = {"id": DID, "verificationMethod": [*passed, {**good, "id": identifier}, other]}
        assert signing_key(found, DID) == PublicKey.parse(K256_KEY[0])
    nameless = {name: content for name, content in good.items() if name != "controller"}
    assert signing_key(document(nameless), DID) == PublicKey.parse(K256_KEY[0])


P256_POINT = base58_decode(P256_KEY[1][1:])
OFF_CURVE = b"\2" + b"\xff" * 32
WHOLE = coincurve.PrivateKey(b"\7" * 32).public_key.format(compressed=False)
HYBRID = bytes((6 + WHOLE[-1] % 2,)) + WHOLE[1:]  # a form that libsecp256k1 would take
BAD_METHODS = [
    method("Multikey", None),
    method("Multikey", 7),
    method("Multikey", ""),
    method("Multikey", "z"),
    method("Multikey", K256_KEY[0][9:]),
    method("Multikey", "m" + K256_KEY[0][9:]),
    method("Multikey", K256_KEY[0][8:] + "0"),
    method("Multikey", K256_KEY[0][8:] + "1"),
    method("Multikey", "z" + "2" * 1_000_000),
    method("Multikey", K256_KEY[1]),  # no multicodec
    method("Multikey", "z" + base58_encode(b"\xed\x01" + b"\2" * 32)),  # Ed25519
    method("Multikey", "z" + base58_encode(b"\xe7\x01" + OFF_CURVE)),
    method("Multikey", "z" + base58_encode(b"\x80\x24" + OFF_CURVE)),
    method("Multikey", "z" + base58_encode(b"\x80\x24\0")),  # the point at infinity
    method(K256, "z" + base58_encode(HYBRID)),
    method(K256, K256_KEY[0][8:]),  # multicodec where none should be
    method(K256, "z" + base58_encode(OFF_CURVE)),
    method(P256, "z" + base58_encode(P256_POINT[:-1])),
    method(P256, "z" + base58_encode(b"\4" + P256_POINT[1:] * 2)),
    method("Ed25519VerificationKey2020", K256_KEY[1]),
    method("", K256_KEY[1], type=["Multikey"]),
]


@pytest.mark.parametrize("bad", BAD_METHODS)
def test_unusable_keys_are_one_error(bad: dict[str, Any]) -> None:
    """A key in no form we know, or no point of its curve, is an IdentityError."""
    with pytest.raises(IdentityError):
        signing_key(document(bad), DID)


@pytest.mark.parametrize("text", ["", "did:key:", "did:key:z", K256_KEY[1], "did:plc:z123", "did:key:z" + "z" * 200])
def test_text_that_is_no_key_is_one_error(text: str) -> None:
    """What was not written by ``did_key`` is an IdentityError."""
    with pytest.raises(IdentityError):
        PublicKey.parse(text)


def test_another_accounts_document_gives_no_key() -> None:
    """A document counts only for the DID that it names."""
    for name in ("did:plc:somebody", None, 7):
        with pytest.raises(IdentityError):
            signing_key({**document(method("Multikey", K256_KEY[0][8:])), "id": name}, DID)


WORDS = ["id", "type", "controller", "verificationMethod", "publicKeyMultibase", "service", "serviceEndpoint"]
WORDS += ["alsoKnownAs", DID, "#atproto", "#atproto_pds", "Multikey", K256, "AtprotoPersonalDataServer", "at://"]
WORDS += [K256_KEY[0][8:], K256_KEY[1], "https://", "at://a.example"]
TEXTS = st.sampled_from(WORDS) | st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = JSON | st.fixed_dictionaries(
    {"id": st.just(DID) | JSON, "verificationMethod": JSON, "service": JSON, "alsoKnownAs": JSON}
)


@given(DOCUMENTS)
def test_any_json_is_met_calmly(found: Any) -> None:
    """Whatever a directory answers: a key or IdentityError, a host or None, a handle or None."""
    try:
        assert isinstance(signing_key(found, DID), PublicKey)
    except IdentityError as error:
        assert DID in str(error)  # noqa: PT017
    assert isinstance(pds_endpoint(found), str | None)
    assert isinstance(handle_of(found), str | None)


@given(st.binary(max_size=80))
def test_base58_is_undone(data: bytes) -> None:
    """Any bytes survive base58, leading zeros included."""
    assert base58_decode(base58_encode(data)) == data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"Hello World!", "2NEpo7TZRRrLZSi2U"),
        (bytes.fromhex("0000287fb4cd"), "11233QC4"),
        (
            b"The quick brown fox jumps over the lazy dog.",
            "USm3fpXnKG5EUBx2ndxBDMPVciP5hGey2Jh4NDv6gmeo1LkMeiKrLJUUBk6Z",
        ),
    ],
)
def test_base58_is_that_of_its_specification(data: bytes, text: str) -> None:
    """The vectors of the base58 draft come out."""
    assert base58_encode(data) == text
    assert base58_decode(text) == data


def pds(url: Any, **changes: Any) -> dict[str, Any]:
    """A document with one service."""
    service = {"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": url, **changes}
    return {"id": DID, "service": [service]}


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://pds.example.com", "https://pds.example.com"),
        ("https://PDS.example.com/", "https://pds.example.com"),
        ("http://localhost:2583", "http://localhost:2583"),
        ("https://[2001:db8::1]:443", "https://[2001:db8::1]:443"),
        ("https://127.0.0.1", "https://127.0.0.1"),
        ("https://pds.example.com/xrpc", None),
        ("https://pds.example.com?x", None),
        ("https://pds.example.com#x", None),
        ("https://user@pds.example.com", None),
        ("https://pds.example.com:99999", None),
        ("https://pds.example.com:x", None),
        ("https://pds.example.com\\.evil.example", None),
        ("https://pds.example.com\n", None),
        ("https://", None),
        ("https:///x", None),
        ("ftp://pds.example.com", None),
        ("pds.example.com", None),
        ("https://" + "a" * 600, None),
        ({"uri": "https://pds.example.com"}, None),
        (["https://pds.example.com"], None),
        (None, None),
    ],
)
def test_only_an_origin_is_a_pds(url: Any, origin: str | None) -> None:
    """A PDS is an HTTP origin and nothing beside it: what else a document puts there is not called."""
    assert pds_endpoint(pds(url)) == origin


def test_the_pds_is_found_by_id_and_type() -> None:
    """The service may be named in short or in full; one of another id or type isn't the PDS."""
    assert pds_endpoint(pds("https://a.example", id=f"{DID}#atproto_pds")) == "https://a.example"
    assert pds_endpoint(pds("https://a.example", id="#atproto_labeler")) is None
    assert pds_endpoint(pds("https://a.example", type="AtprotoLabeler")) is None
    two = pds("https://a.example")["service"] + pds("https://b.example")["service"]
    assert pds_endpoint({"id": DID, "service": two}) == "https://a.example"


@pytest.mark.parametrize(
    ("names", "handle"),
    [
        (["at://alice.example.com"], "alice.example.com"),
        (["https://alice.example", 7, "at://Alice.Example.com", "at://bob.example"], "alice.example.com"),
        (["at://"], None),
        (["at://alice"], None),
        (["at://alice.example/x"], None),
        ([f"at://{'a.' * 200}example"], None),
        ([], None),
        ("at://alice.example.com", None),
        (None, None),
    ],
)
def test_the_handle_is_the_first_at_uri(names: Any, handle: str | None) -> None:
    """The claimed handle is the first ``at://`` name, in lower case, if it is a handle at all."""
    assert handle_of({"id": DID, "alsoKnownAs": names}) == handle


def test_a_signature_is_over_the_hash_of_the_message() -> None:
    """What is signed is SHA-256 of the message, once."""
    key = coincurve.PrivateKey(b"\7" * 32)
    public = PublicKey.from_point("secp256k1", key.public_key.format())
    digest = hashlib.sha256(b"message").digest()
    assert public.verify(b"message", joined(*raw(key.sign(digest, hasher=None))))
    assert not public.verify(digest, joined(*raw(key.sign(digest, hasher=None))))
