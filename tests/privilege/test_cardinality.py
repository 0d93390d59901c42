"""Whatever the stream sends, the number of series is bounded by the definitions: no stranger can fill a Prometheus."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from math import prod
from platform import python_version
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer import __version__
from indexer import metrics as module
from indexer.intake import Intake
from indexer.metrics import DEFINITIONS, Definition, Metrics
from indexer.model import Reason
from indexer.pipeline import Pipeline
from indexer.route import Router
from indexer.sources.base import Chunk, Opened
from indexer.store import Applied, Store
from indexer.syntax import CollectionFilter
from indexer.trust import Word
from tests.frames import DID, TIME, dag_cbor, rev
from tests.indexing import LETTA, MemorySource
from tests.privilege.test_statements import modules

SOURCE = "firehose:test"
QUEUES = ("batch",)
# Every value that a label of a metric can have: by metric and label, or by label alone. What is missing has no bound.
LISTS: dict[str, tuple[str, ...]] = {
    "source": (SOURCE,),  # those of the settings, and one for all spaces
    "type": module.FRAME_TYPES,
    "collection": module.COLLECTION_LABELS,
    "action": module.ACTIONS,
    "kind": module.RECOMPILE_KINDS,
    "freshness": module.FRESHNESS,
    "proof": module.PROOFS,
    "severity": module.SEVERITIES,
    "queue": QUEUES,
    "version": (__version__,),
    "python": (python_version(),),
    "dropped_total.reason": tuple(map(str, Reason)),
    "dead_letters_total.reason": tuple(map(str, Reason)),
    "reconnects_total.reason": module.RECONNECT_REASONS,
    "stale_prompts.reason": module.STALE_REASONS,
    "wants.reason": module.WANT_REASONS,
}
SAMPLES_OF_A_HISTOGRAM = 2  # sum and count, beside the buckets
BOUNDED = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def values_of(definition: Definition, label: str) -> tuple[str, ...]:
    """All values of a label; KeyError where nobody has said what bounds it."""
    return LISTS.get(f"{definition.name}.{label}") or LISTS[label]


def bound(definition: Definition) -> int:
    """The most series that a metric can have."""
    if definition.kind == "histogram":
        return len(getattr(Metrics(lambda: 0.0), definition.name).buckets()) + SAMPLES_OF_A_HISTOGRAM
    return prod(len(values_of(definition, label)) for label in definition.labels)


MOST = sum(map(bound, DEFINITIONS))


def check(metrics: Metrics) -> None:
    """No more series than there can be, and no word in them that isn't on a list."""
    samples = [(family.name, sample) for family in metrics.collect() for sample in family.samples]
    assert len(samples) <= MOST
    by_name = {one.full_name.removesuffix("_total"): one for one in DEFINITIONS}
    for name, sample in samples:
        definition = by_name[name.removesuffix("_total")]
        assert set(sample.labels) - {"le"} == set(definition.labels)
        assert all(sample.labels[label] in values_of(definition, label) for label in definition.labels), sample


def test_every_label_has_a_bound() -> None:
    """Each label of each metric is out of a list, so all series together are some hundreds for each source."""
    for definition in DEFINITIONS:
        assert bound(definition) >= 1
    assert MOST < 500


words = st.text(max_size=12) | st.sampled_from(
    ["#commit", "#account", "#sync", "#info", "create", "other", *module.COLLECTIONS, "xyz.quasigod.lab.letta.new"]
)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | words | st.binary(max_size=8)
operations = st.lists(
    st.fixed_dictionaries({"action": words, "path": st.builds("{}/{}".format, words, words), "cid": scalars}),
    max_size=4,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "seq": st.integers(0, 2**40) | scalars,
        "repo": st.just(DID) | scalars,
        "did": st.just(DID) | scalars,
        "rev": st.just(rev(1)) | scalars,
        "time": st.just(TIME) | scalars,
        "handle": scalars,
        "active": scalars,
        "status": scalars,
        "ops": operations | scalars,
        "blocks": st.binary(max_size=40) | scalars,
        "error": words | scalars,
        "name": words | scalars,
    },
) | st.dictionaries(words, scalars, max_size=4)
headers = st.fixed_dictionaries({"op": st.sampled_from([1, -1]) | scalars, "t": words | scalars})
raw = st.builds(lambda header, body: dag_cbor(header) + dag_cbor(body), headers, bodies) | st.binary(max_size=60)


@given(frames=st.lists(raw, max_size=12), live=st.booleans())
@BOUNDED
def test_no_frame_makes_a_series(frames: list[bytes], live: bool) -> None:
    """Frames of any type and form, of any collection and action, leave the series within their bound."""
    metrics = Metrics(lambda: 0.0)
    pipeline = Pipeline(cast("Store", None), metrics, Router(CollectionFilter([LETTA])), batch_rows=1 << 40)
    source = MemorySource(SOURCE, SOURCE, live=live, positions="sequence" if live else "count")

    async def take() -> None:
        intake = Intake(pipeline, source, Word(pipeline), None)  # type: ignore[arg-type]
        await intake.take(Opened(None))
        await intake.take(Chunk([dag_cbor({"op": 1, "t": "#commit"}), *frames], None if live else 0))

    asyncio.run(take())
    check(metrics)


@given(
    collections=st.lists(words, max_size=8),
    reasons=st.lists(words, max_size=8),
    dropped=st.lists(st.sampled_from(Reason), max_size=8),
)
@BOUNDED
def test_no_outcome_makes_a_series(collections: list[str], reasons: list[str], dropped: list[Reason]) -> None:
    """Rows of any collection, wants and losses for any reason that a later version may name, are counted in bounds."""
    metrics = Metrics(lambda: 0.0)
    pipeline = Pipeline(cast("Store", None), metrics, Router(CollectionFilter([LETTA])))
    pipeline.learn(Applied(rows=Counter(collections), recompiles=Counter(["full"]), dropped=Counter(dropped)))
    meter = metrics.source(SOURCE)
    meter.committed(1, 0.0)
    for reason in reasons:
        meter.reconnected(reason)
        meter.frame(reason, 1)
        metrics.dead_letter(Reason.QUOTA)
    metrics.set_work(Counter(reasons), len(reasons))
    metrics.set_prompts({}, {})
    metrics.set_records({(name, "repo"): 1 for name in collections}, Counter(collections))
    metrics.set_issues({})
    check(metrics)


def test_sources_are_labelled_by_the_settings_alone() -> None:
    """A source's label is its cursor's key, or that of all spaces: none is made of what a host or record says."""
    found = [
        (where, ast.unparse(call))
        for where, tree in modules()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("metrics.source")
    ]
    assert found
    assert {text.partition("metrics.source(")[2].rstrip(")") for _, text in found} <= {"source.label", "LABEL"}


@pytest.mark.parametrize("broken", ["type", "collection", "reason"])
def test_a_label_from_outside_is_seen(broken: str) -> None:
    """The look at the series sees a metric that takes a stranger's word for a label."""
    metrics = Metrics(lambda: 0.0)
    counts: dict[str, Any] = {
        "type": metrics.source(SOURCE).frames,
        "collection": metrics._rows,
        "reason": metrics._dropped,
    }
    counts[broken]["a stranger's word"] = 1
    with pytest.raises(AssertionError):
        check(metrics)
