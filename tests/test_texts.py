"""What is said of long texts: digests, lengths, containment."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.lexicon import record_of
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, Json
from indexer.store.statements import FACTS, table_of
from indexer.texts import facts_of
from tests.frames import dag_cbor


@given(content=st.text(max_size=40), memory=st.text(max_size=5), around=st.booleans())
def test_facts_are_of_the_texts_as_written(content: str, memory: str, around: bool) -> None:
    """Digests are those of the original bytes, also of what jsonb can't hold; lengths count bytes of UTF-8."""
    content += memory * around
    block = dag_cbor({"$type": COMPILED_PROMPT, "content": content, "coreMemory": memory})
    facts = record_of(COMPILED_PROMPT, "k", block).facts
    assert facts["content_sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert facts["core_memory_sha256"] == hashlib.sha256(memory.encode()).hexdigest()
    held = content.replace("\0", "\ufffd")
    assert facts["content_bytes"] == len(held.encode())
    assert facts["core_memory_in_content"] is (memory.replace("\0", "\ufffd") in held)


@pytest.mark.parametrize("value", [None, 1, True, [], {}, {"$link": "x"}])
def test_what_is_no_text_has_no_facts(value: Json) -> None:
    """A field that is missing or no string is nothing to compare with."""
    assert set(facts_of(COMPILED_PROMPT, {"content": value, "coreMemory": "m"}, {}).values()) == {
        None,
        hashlib.sha256(b"m").hexdigest(),
    }
    assert facts_of(AGENT, {"system": value}, {}) == facts_of(AGENT, {}, {}) == {"system_sha256": None}


@pytest.mark.parametrize("collection", [COMPILED_PROMPT, AGENT, CONVERSATION, "any.other.name"])
def test_facts_are_the_columns_that_the_store_writes(collection: str) -> None:
    """Every fact has its column, and every such column its fact."""
    assert facts_of(collection, {}, {}).keys() == FACTS.get(table_of(collection), {}).keys()
