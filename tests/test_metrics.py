"""What is counted, under which names, and that nothing from outside can make it grow."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from indexer import metrics as module
from indexer.metrics import DEFINITIONS, Histogram, Metrics, metrics_table
from indexer.model import AGENT, COMPILED_PROMPT, PREFIX, Reason
from indexer.sources.base import ReconnectReason
from indexer.store.statements import schema_sql

DESIGNED = """frames_total{source,type}, bytes_total{source}, operations_total{collection,action},
dropped_total{reason}, dead_letters_total{reason}, rows_written_total{collection}, recompiles_total{kind},
prompts{freshness}, stale_prompts{reason}, cursor_seq{source}, lag_seconds{source}, reconnects_total{source,reason},
queue_depth{queue}, batch_rows, commit_seconds, database_up, wants{reason}, pending, build_info{version,python},
source_up{source}, writer, stalest_prompt_seconds, records{collection,proof}, invalid_records{collection},
integrity_issues{severity}, failing_wants, oldest_want_seconds, database_bytes, data_dir_size_bytes,
data_dir_free_bytes"""

READ_ALONE = (
    *("stalest_prompt_seconds", "failing_wants", "oldest_want_seconds"),
    *("database_bytes", "data_dir_size_bytes", "data_dir_free_bytes"),
)


class Clock:
    """A clock that a test sets by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(clock)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.render()[0].decode()
    found = [sample for family in parse_text(text) for sample in family.samples]
    return {
        (sample.name.removeprefix("letta_indexer_"), frozenset(sample.labels.items())): sample.value for sample in found
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def fill(metrics: Metrics) -> None:
    """Give every metric at least one sample."""
    metrics.source("firehose:a").committed(1, None)
    metrics.watch_queue("frames", lambda: 0)
    metrics.set_prompts({}, {})
    metrics.set_work({}, 0)
    metrics.set_records({}, {})
    metrics.set_issues({})
    for name in READ_ALONE:
        metrics.set_gauge(name, 1)


def test_names_and_labels_are_those_of_the_design() -> None:
    """Dashboards and alerts rely on these names and labels: exactly these, in this spelling."""
    written = [f"{one.name}{{{','.join(one.labels)}}}" if one.labels else one.name for one in DEFINITIONS]
    assert sorted(written) == sorted(DESIGNED.replace("\n", " ").split(", "))


def test_what_is_scraped_is_what_is_defined(metrics: Metrics) -> None:
    """Every family that a scrape shows is one of the definitions, with its labels, and none is missing."""
    fill(metrics)
    families = {family.name: family for family in metrics.collect()}
    names = {one.full_name.removesuffix("_total") if one.kind == "counter" else one.full_name for one in DEFINITIONS}
    assert set(families) == names
    for one in DEFINITIONS:
        family = families[one.full_name.removesuffix("_total") if one.kind == "counter" else one.full_name]
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels == {frozenset(one.labels)}, one.name
        assert family.documentation == one.help


def test_both_formats_can_be_read_back(metrics: Metrics) -> None:
    """The text format by default, OpenMetrics on request: each with its own content type and readable."""
    fill(metrics)
    plain, plain_type = metrics.render("text/html")
    opened, opened_type = metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert opened_type.startswith("application/openmetrics-text; version=1.0.0")
    families = list(parse_openmetrics(opened.decode()))  # type: ignore[no-untyped-call]
    assert len(families) == len(list(parse_text(plain.decode()))) == len(DEFINITIONS)


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text;version=x", ";;,,=", "text/plain;version=9;escaping=z"]
)
def test_no_accept_header_breaks_the_scrape(metrics: Metrics, accept: str) -> None:
    """Whatever a client claims to accept, it gets one of the two formats, and none of its words."""
    assert metrics.render(accept)[1] in (module.PLAIN_TEXT, module.OPENMETRICS)


def test_zeroes_are_there_from_the_start(metrics: Metrics) -> None:
    """Each value of a closed list has its counter before anything happened, so that a rate can see the first one."""
    metrics.source("firehose:a")
    found = samples(metrics)
    for reason in Reason:
        assert found["dropped_total", frozenset({("reason", reason.value)})] == 0
        assert found["dead_letters_total", frozenset({("reason", reason.value)})] == 0
    assert sum(name == "operations_total" for name, _ in found) == len(module.COLLECTION_LABELS) * len(module.ACTIONS)
    assert sum(name == "frames_total" for name, _ in found) == len(module.FRAME_TYPES)
    assert sum(name == "reconnects_total" for name, _ in found) == len(module.RECONNECT_REASONS)
    assert sum(name == "recompiles_total" for name, _ in found) == len(module.RECOMPILE_KINDS)


def test_what_was_not_read_is_not_claimed(metrics: Metrics) -> None:
    """Before the database was asked, there is no number of prompts: zero would say that all is well."""
    assert value(metrics, "prompts", freshness="stale") is None
    assert value(metrics, "pending") is None
    metrics.set_prompts({"stale": 3}, {"memory_changed": 3})
    metrics.set_work({"gap": 2}, 5)
    assert value(metrics, "prompts", freshness="stale") == 3
    assert value(metrics, "prompts", freshness="fresh") == 0
    assert value(metrics, "stale_prompts", reason="memory_changed") == 3
    assert value(metrics, "wants", reason="gap") == 2
    assert value(metrics, "pending") == 5


def test_each_count_lands_where_it_belongs(metrics: Metrics) -> None:
    """Every counting method raises its own series, by the number given."""
    meter = metrics.source("firehose:a")
    meter.frame("#commit", 100)
    meter.frame("commit", 50)
    meter.reconnected("idle")
    metrics.operation(AGENT, "update")
    metrics.operation(PREFIX + "unheardOf", "create", 2)
    metrics.rows_written(COMPILED_PROMPT, 7)
    metrics.dropped(Reason.QUOTA, 4)
    metrics.dead_letter(Reason.WRONG_CID)
    metrics.recompiled("memory")
    metrics.database_up = True
    assert value(metrics, "frames_total", source="firehose:a", type="commit") == 2
    assert value(metrics, "bytes_total", source="firehose:a") == 150
    assert value(metrics, "reconnects_total", source="firehose:a", reason="idle") == 1
    assert value(metrics, "operations_total", collection="agent", action="update") == 1
    assert value(metrics, "operations_total", collection="other", action="create") == 2
    assert value(metrics, "rows_written_total", collection="compiledPrompt") == 7
    assert value(metrics, "dropped_total", reason="quota") == 4
    assert value(metrics, "dead_letters_total", reason="wrong_cid") == 1
    assert value(metrics, "recompiles_total", kind="memory") == 1
    assert value(metrics, "database_up") == 1


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=20))
def test_words_from_outside_make_no_new_series(words: list[tuple[str, str, str]]) -> None:
    """A stranger who invents types, actions and collections makes ``other`` grow, not the number of series."""
    metrics = Metrics(Clock())
    meter = metrics.source("firehose:a")
    before = set(samples(metrics))
    for kind, action, collection in words:
        meter.frame(kind, 1)
        meter.reconnected(kind)
        metrics.operation(collection, action)
    assert set(samples(metrics)) == before
    assert sum(meter.frames.values()) == len(words)


def test_the_lag_of_a_stalled_source_grows_by_itself(metrics: Metrics, clock: Clock) -> None:
    """The lag is worked out at the scrape: it needs no event to grow, and none to start."""
    meter = metrics.source("firehose:a")
    clock.now += 30
    assert value(metrics, "lag_seconds", source="firehose:a") == 30
    meter.committed(5, clock.now - 2)
    assert value(metrics, "lag_seconds", source="firehose:a") == 2
    clock.now += 100
    assert value(metrics, "lag_seconds", source="firehose:a") == 102
    assert meter.lag() == 102
    assert metrics.lags() == {"firehose:a": 102}


def test_an_event_from_the_future_is_no_negative_lag(metrics: Metrics, clock: Clock) -> None:
    """A host whose clock is ahead shows no lag, rather than less than none."""
    metrics.source("firehose:a").committed(5, clock.now + 60)
    assert value(metrics, "lag_seconds", source="firehose:a") == 0


def test_records_count_under_closed_lists(metrics: Metrics) -> None:
    """A stranger's collections add up under ``other``, records without a proof under ``none``; the rest is zero."""
    metrics.set_records({(AGENT, "repo"): 2, (PREFIX + "new", ""): 3, ("", "space"): 1}, {PREFIX + "new": 1, "": 2})
    found = {labels: number for (name, labels), number in samples(metrics).items() if name == "records" and number}
    assert {tuple(sorted(dict(labels).values())): number for labels, number in found.items()} == {
        ("agent", "repo"): 2,
        ("none", "other"): 3,
        ("other", "space"): 1,
    }
    assert value(metrics, "invalid_records", collection="other") == 3
    assert value(metrics, "invalid_records", collection="agent") == 0


def test_severities_are_those_of_the_view(metrics: Metrics) -> None:
    """Every severity that ``letta.integrity_issue`` knows has its label; one that it doesn't know is our own fault."""
    known = set(re.findall(r"^select '\w+'(?: as kind)?, '(\w+)'", schema_sql(), re.MULTILINE))
    assert known == set(module.SEVERITIES)
    metrics.set_issues({"error": 2})
    assert value(metrics, "integrity_issues", severity="error") == 2
    assert value(metrics, "integrity_issues", severity="warning") == 0
    with pytest.raises(KeyError):
        metrics.set_issues({"fatal": 1})


def test_a_source_is_up_while_it_is_connected(metrics: Metrics) -> None:
    """Down from the start until it is connected, and while it isn't; one given up stays down."""
    meter = metrics.source("firehose:a")
    assert value(metrics, "source_up", source="firehose:a") == 0
    meter.up = True
    assert value(metrics, "source_up", source="firehose:a") == 1
    meter.up = False
    meter.finish()
    assert value(metrics, "source_up", source="firehose:a") == 0


def test_a_finished_source_has_no_lag(metrics: Metrics, clock: Clock) -> None:
    """A capture that was read to its end doesn't raise an alarm for the age of its events."""
    meter = metrics.source("file:abc")
    meter.committed(9, 0.0)
    meter.finish()
    clock.now += 1000
    assert value(metrics, "lag_seconds", source="file:abc") is None
    assert metrics.lags() == {}
    assert meter.lag() == 0
    assert value(metrics, "cursor_seq", source="file:abc") == 9


def test_a_cursor_shows_once_there_is_one(metrics: Metrics) -> None:
    """No position is claimed before one is committed, and a commit without position keeps the old one."""
    meter = metrics.source("firehose:a")
    assert value(metrics, "cursor_seq", source="firehose:a") is None
    meter.committed(7, None)
    meter.committed(None, None)
    assert value(metrics, "cursor_seq", source="firehose:a") == 7


def test_a_source_has_one_meter(metrics: Metrics) -> None:
    """Asking twice for a source gives the same numbers, so that a reconnect doesn't reset them."""
    assert metrics.source("firehose:a") is metrics.source("firehose:a")
    assert metrics.source("firehose:a") is not metrics.source("firehose:b")


def test_queue_depth_is_asked_at_the_scrape(metrics: Metrics) -> None:
    """The depth shown is that of now, not of the last time something was put in."""
    queue: list[int] = []
    metrics.watch_queue("frames", lambda: len(queue))
    queue.extend([1, 2, 3])
    assert value(metrics, "queue_depth", queue="frames") == 3


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    """A histogram follows Prometheus: each bucket counts all observations up to and including its bound."""
    histogram = Histogram((1.0, 10.0))
    for observed in (1, 2, 10, 11):
        histogram.observe(observed)
    assert histogram.buckets() == [("1.0", 1), ("10.0", 3), ("+Inf", 4)]
    assert histogram.total == 24


def test_histograms_are_scraped(metrics: Metrics) -> None:
    """Observed transactions show as count, sum and buckets."""
    metrics.batch_rows.observe(300)
    metrics.commit_seconds.observe(0.02)
    assert value(metrics, "batch_rows_count") == 1
    assert value(metrics, "batch_rows_sum") == 300
    assert value(metrics, "commit_seconds_bucket", le="0.025") == 1
    assert value(metrics, "commit_seconds_bucket", le="0.01") == 0


def test_every_reason_to_reconnect_has_a_label() -> None:
    """The closed list of the sources and the label's list are the same, but for ``other``."""
    assert set(module.RECONNECT_REASONS) == {*map(str, ReconnectReason), module.OTHER}


def test_two_daemons_share_nothing() -> None:
    """Each instance has its own registry: counting in one leaves the other alone."""
    one, other = Metrics(Clock()), Metrics(Clock())
    one.dropped(Reason.QUOTA)
    assert value(other, "dropped_total", reason="quota") == 0
    assert one.registry is not other.registry


@pytest.mark.parametrize("kind", ["", "partial"])
def test_a_kind_of_our_own_that_is_unknown_is_a_fault(metrics: Metrics, kind: str) -> None:
    """Kinds come from our code: one that is not on the list is a bug, and says so."""
    with pytest.raises(KeyError):
        metrics.recompiled(kind)


def test_the_table_is_in_the_documentation() -> None:
    """README.md or a page of docs/ holds the table of metrics exactly as the code defines them."""
    root = Path(__file__).parent.parent
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    assert any(metrics_table() in page.read_text(encoding="utf-8") for page in pages), (
        f"paste this into README.md:\n{metrics_table()}"
    )
