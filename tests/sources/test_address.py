"""Which words after --source mean what."""

from __future__ import annotations

from pathlib import Path

import pytest

from indexer.errors import SettingsError
from indexer.sources.address import (
    FileAddress,
    FirehoseAddress,
    JetstreamAddress,
    parse_source_url,
    without_credentials,
)


@pytest.mark.parametrize(
    ("text", "url", "key"),
    [
        ("wss://relay.example", "wss://relay.example/xrpc/com.atproto.sync.subscribeRepos", "firehose:relay.example"),
        ("WSS://Relay.Example/", "wss://relay.example/xrpc/com.atproto.sync.subscribeRepos", "firehose:relay.example"),
        ("wss://a.example:443", "wss://a.example:443/xrpc/com.atproto.sync.subscribeRepos", "firehose:a.example"),
        ("ws://localhost:2583", "ws://localhost:2583/xrpc/com.atproto.sync.subscribeRepos", "firehose:localhost:2583"),
        ("ws://[::1]:80/other", "ws://[::1]:80/other", "firehose:[::1]"),
        ("wss://my_pds/x?a=1", "wss://my_pds/x?a=1", "firehose:my_pds"),
        ("wss://bücher.example/x", "wss://xn--bcher-kva.example/x", "firehose:xn--bcher-kva.example"),
        ("wss://me:secret@a.example/x", "wss://me:secret@a.example/x", "firehose:a.example"),
        ("wss://me@a.example/x", "wss://me:@a.example/x", "firehose:a.example"),
    ],
)
def test_a_firehose_url_gives_what_to_connect_to_and_a_key(text: str, url: str, key: str) -> None:
    """Path and default port are filled in; the key names host and unusual port only."""
    assert parse_source_url(text) == FirehoseAddress(url, key)


@pytest.mark.parametrize(
    ("text", "path"),
    [("file:a/b.bin", "a/b.bin"), ("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("FILE:x?y#z", "x?y#z")],
)
def test_a_file_is_a_path_as_it_stands(text: str, path: str) -> None:
    """Nothing in a path is decoded or cut off."""
    assert parse_source_url(text) == FileAddress(Path(path))


@pytest.mark.parametrize(
    "text",
    [
        *("", "relay.example", "https://relay.example", "wss:relay.example", "wss://", "wss://:443", "ws://?x"),
        *("wss://a b", "wss://a\nb", "wss://a:0", "wss://a:65536", "wss://a:x", "wss://[::1", "wss://a/x#y"),
        *("wss://a/x?cursor=5", "wss://a/x?cursor=", "wss://" + "a" * 64 + ".example", "wss://a!b", "wss://\udc80"),
        *("file:", "file://host/path", "file://", "file:////a", "file:a\0b"),
    ],
)
def test_nonsense_is_refused_by_name(text: str) -> None:
    """Whatever is neither a firehose nor a file is a settings error that names the setting."""
    with pytest.raises(SettingsError, match=r"^--source "):
        parse_source_url(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("jetstream+wss://a.example", JetstreamAddress("wss://a.example", "jetstream:a.example")),
        ("JETSTREAM+WSS://A.example:443/?v=2", JetstreamAddress("wss://a.example:443", "jetstream:a.example", 2)),
        ("jetstream+ws://[::1]:6008/subscribe", JetstreamAddress("ws://[::1]:6008", "jetstream:[::1]:6008", 1)),
        ("jetstream+ws://a.example?v=1", JetstreamAddress("ws://a.example", "jetstream:a.example", 1)),
        (
            "jetstream+wss://a.example/xrpc/network.bsky.jetstream.subscribeEvents",
            JetstreamAddress("wss://a.example", "jetstream:a.example", 2),
        ),
    ],
)
def test_a_jetstream_is_a_host_and_perhaps_a_version(text: str, address: JetstreamAddress) -> None:
    """By the path or by ``?v=``; without either the host's own is found out."""
    assert parse_source_url(text) == address


@pytest.mark.parametrize(
    "rest",
    [
        *("", "a b", "a/other", "a?v=3", "a?v=1&v=2", "a?v=1&v=1", "a/subscribe?v=2", "a?wantedCollections=x.y.z"),
        *("a?cursor=1", "a/subscribe?v", "a#x", "a?v=01"),
    ],
)
def test_what_is_asked_of_a_jetstream_is_ours_to_say(rest: str) -> None:
    """Filters, cursors and unknown paths in the URL are refused."""
    with pytest.raises(SettingsError, match=r"^--source 'jetstream\+wss:"):
        parse_source_url(f"jetstream+wss://{rest}")


@pytest.mark.parametrize(
    "text",
    [
        *("wss://me:secret@a b", "wss://me:sec@secret@a:x", "wss://me:secret://secret@a:x", "me:secret@wss://a"),
        *(
            "me:secret@a",
            "https://a/?token=secret",
            "wss://a/x?token=secret#y",
            "wss://me:x#secret@a",
        ),
        "wss://me:secret@",
    ],
)
def test_no_message_holds_a_password_or_query(text: str) -> None:
    """Errors are logged and pasted into issues."""
    with pytest.raises(SettingsError) as caught:
        parse_source_url(text)
    assert "secret" not in str(caught.value)


def test_an_address_can_be_printed() -> None:
    """The repr of a value that holds a URL with a password doesn't show it."""
    assert "secret" not in repr(parse_source_url("wss://me:secret@a.example?token=secret"))
    assert without_credentials("wss://a.example/x") == "wss://a.example/x"


def test_a_cursor_is_asked_for_only_if_there_is_one() -> None:
    """0 is a cursor (everything the host keeps); none at all means from now on."""
    address = FirehoseAddress("wss://a/x", "firehose:a")
    assert [address.after(cursor) for cursor in (None, 0, 7)] == [
        "wss://a/x",
        "wss://a/x?cursor=0",
        "wss://a/x?cursor=7",
    ]
    assert FirehoseAddress("wss://a/x?y=1", "firehose:a").after(7) == "wss://a/x?y=1&cursor=7"
