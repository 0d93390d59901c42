"""What the daemon counts, for Prometheus: every metric with its labels and what to conclude from it.

Counters are plain integers in dictionaries, added to by the event loop's thread alone and turned into samples when
somebody scrapes: counting a frame costs no lock and no object. Labels come from closed lists; whatever is not on
the list counts as ``other``, so nothing from outside can make the set of series grow. All values of a closed list
are there from the start, as zeroes; gauges read from the database appear once they have been read.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from indexer import __version__, model
from indexer.model import Reason, WantReason

NAMESPACE: Final = "letta_indexer_"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "other"

FRAME_TYPES: Final = ("commit", "sync", "identity", "account", "info", "error", OTHER)
ACTIONS: Final = ("create", "update", "delete", OTHER)
COLLECTIONS: Final = {
    model.AGENT: "agent",
    model.CONVERSATION: "conversation",
    model.COMPILED_PROMPT: "compiledPrompt",
    model.MESSAGE: "message",
}
COLLECTION_LABELS: Final = (*COLLECTIONS.values(), OTHER)
RECOMPILE_KINDS: Final = ("first", "full", "memory", "touch")
FRESHNESS: Final = ("fresh", "stale", "unverified")
STALE_REASONS: Final = ("template_changed", "memory_changed")
PROOFS: Final = ("repo", "space", "none")
SEVERITIES: Final = ("error", "warning", "information")
RECONNECT_REASONS: Final = (
    *("connect_failed", "tls", "http_error", "closed", "idle", "oversized", "protocol_error"),
    *("consumer_too_slow", "future_cursor", "sequence_reset", "error_frame"),
    OTHER,
)
WANT_REASONS: Final = (*(reason.value for reason in WantReason), OTHER)
BATCH_ROWS_BOUNDS: Final = (1.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2000.0, 5000.0)
COMMIT_SECONDS_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric: its name without the namespace, its labels, and what its value tells an operator."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        """The name as it is scraped."""
        return NAMESPACE + self.name


_COUNTERS = (
    ("frames_total", ("source", "type"), "Frames received. Standing still: the source is silent or the loop hangs"),
    ("bytes_total", ("source",), "Bytes of frames received: what following this source costs in bandwidth"),
    ("operations_total", ("collection", "action"), "Operations on records we index, before they are checked"),
    ("dropped_total", ("reason",), "Input from outside that is not in the index, and why. Rising: look at dead_letter"),
    ("dead_letters_total", ("reason",), "Frames set aside for a look, by reason. Normal is zero"),
    ("rows_written_total", ("collection",), "Rows the committed transactions changed; fewer than operations is normal"),
    ("recompiles_total", ("kind",), "Prompt versions seen, by what changed against the one before"),
    ("reconnects_total", ("source", "reason"), "Connections made anew. Rising fast: the host or the network is ill"),
)
_GAUGES = (
    ("prompts", ("freshness",), "Prompts in the index. Mostly unverified: the agents' records are missing"),
    ("stale_prompts", ("reason",), "Prompts that evidence contradicts; one prompt can count under both reasons"),
    ("cursor_seq", ("source",), "Position committed with the data: a restart goes on from here"),
    ("lag_seconds", ("source",), "Age of the last committed event. Growing by a second a second: nothing arrives"),
    ("source_up", ("source",), "1 while the source is connected. At 0 for minutes: its host or the network is down"),
    ("queue_depth", ("queue",), "Items waiting. Full for long: the stage behind it is the bottleneck"),
    ("stalest_prompt_seconds", (), "How long the stalest prompt has been so. Growing: its agent recompiles no more"),
    (
        "records",
        ("collection", "proof"),
        "Records kept, hidden ones too. Many of proof none: they wait to be proven, or never are",
    ),
    ("invalid_records", ("collection",), "Records that break their schema, kept all the same: a writer has faults"),
    ("integrity_issues", ("severity",), "What does not fit together within a repository: see letta.integrity_issue"),
    ("database_up", (), "1 if the last use of the database worked. At 0 nothing is lost, but the lag grows"),
    ("database_bytes", (), "Size of the database. Growing faster than records: history, or a vacuum that lags"),
    ("data_dir_size_bytes", (), "Size of the file system of the database, where that is on this machine"),
    ("data_dir_free_bytes", (), "Room left on the file system of the database. At 0 it stops, and nothing is lost"),
    ("writer", (), "1 if this daemon writes the stream. 0 on all daemons of a database: the index stands still"),
    ("wants", ("reason",), "Repositories that wait for a repair. Not falling: their hosts do not answer"),
    ("failing_wants", (), "Of these, how many were tried three times in vain: letta.repo says whose and why"),
    ("oldest_want_seconds", (), "How long the oldest of these has waited. Over a day: its host is gone or broken"),
    ("pending", (), "Commits kept until they can be decided. Growing: identities do not resolve"),
    ("build_info", ("version", "python"), "Always 1: which build this is"),
)
_HISTOGRAMS = (
    ("batch_rows", (), "Rows in one transaction. At the limit all the time: the database sets the pace"),
    ("commit_seconds", (), "How long one transaction took. Above a second: look at the database"),
)


def _define(kind: Kind, entries: Iterable[tuple[str, tuple[str, ...], str]]) -> tuple[Definition, ...]:
    return tuple(Definition(name, kind, labels, text) for name, labels, text in entries)


DEFINITIONS: Final = _define("counter", _COUNTERS) + _define("gauge", _GAUGES) + _define("histogram", _HISTOGRAMS)

Series = dict[tuple[str, ...], float]


class Histogram:
    """Counts of observations by size, for one metric without labels."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation, in the metric's unit."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts as ``(upper bound, count)``, the last one for ``+Inf``."""
        rows: list[tuple[str, float]] = []
        reached = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            reached += count
            rows.append((bound, reached))
        return rows


class SourceMeter:
    """The numbers of one source; get it from :meth:`Metrics.source`."""

    __slots__ = ("_clock", "_last", "_types", "bytes", "finished", "frames", "reconnects", "seq", "up")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()  # until the first event the lag is the time waited for it
        self._types = {"#" + name: name for name in FRAME_TYPES} | {name: name for name in FRAME_TYPES}
        self.frames = dict.fromkeys(FRAME_TYPES, 0)
        self.reconnects = dict.fromkeys(RECONNECT_REASONS, 0)
        self.bytes = 0
        self.seq: int | None = None
        self.up = False  # connected at this moment, or read to its end
        self.finished = False

    def frame(self, kind: str, size: int) -> None:
        """Count a frame of ``size`` bytes; ``kind`` is its type, with or without ``#`` (any word from outside)."""
        self.frames[self._types.get(kind, OTHER)] += 1
        self.bytes += size

    def reconnected(self, reason: str) -> None:
        """Count a connection made anew, ``reason`` being the one of :class:`indexer.errors.SourceLost`."""
        self.reconnects[_closed(reason, self.reconnects)] += 1

    def committed(self, seq: int | None, event_time: float | None) -> None:
        """Note what the last committed transaction reached: position, and the event's time (seconds since 1970)."""
        self.seq = self.seq if seq is None else seq
        self._last = self._last if event_time is None else event_time

    def finish(self) -> None:
        """Note that the source has come to its end (a file): it has no lag from now on."""
        self.finished = True

    def lag(self) -> float:
        """Return the seconds since the last committed event, at least 0; before the first: since the start."""
        return 0.0 if self.finished else max(0.0, self._clock() - self._last)


class Metrics:
    """All numbers of one daemon, in a registry of their own. Not thread-safe: for the event loop's thread.

    ``clock`` returns seconds since 1970; it is read when somebody scrapes, so that the lag of a source that
    stopped goes on growing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sources: dict[str, SourceMeter] = {}
        self._queues: dict[str, Callable[[], int]] = {}
        self._read: dict[str, Series] = {}  # gauges read from the database
        self._operations = {(name, action): 0 for name in COLLECTION_LABELS for action in ACTIONS}
        self._rows = dict.fromkeys(COLLECTION_LABELS, 0)
        self._dropped = dict.fromkeys(Reason, 0)
        self._dead_letters = dict.fromkeys(Reason, 0)
        self._recompiles = dict.fromkeys(RECOMPILE_KINDS, 0)
        self.database_up = False
        self.writer = False
        self.batch_rows = Histogram(BATCH_ROWS_BOUNDS)
        self.commit_seconds = Histogram(COMMIT_SECONDS_BOUNDS)
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def source(self, label: str) -> SourceMeter:
        """Return the meter of a source, made at the first call; ``label`` is its cursor key, or ``space``."""
        if label not in self._sources:
            self._sources[label] = SourceMeter(self._clock)
        return self._sources[label]

    def forget_sources(self) -> None:
        """Drop the numbers of all sources: another daemon follows them from now on, and shows its own."""
        self._sources.clear()

    def lags(self) -> dict[str, float]:
        """Return the lag in seconds of each source that goes on."""
        return {label: meter.lag() for label, meter in self._sources.items() if not meter.finished}

    def watch_queue(self, queue: str, depth: Callable[[], int]) -> None:
        """Let ``queue_depth{queue}`` be what ``depth()`` returns when scraped; ``queue`` is a name of our own."""
        self._queues[queue] = depth

    def operation(self, collection: str, action: str, count: int = 1) -> None:
        """Count operations on records of ``collection`` (an NSID); an unknown action counts as ``other``."""
        self._operations[COLLECTIONS.get(collection, OTHER), action if action in ACTIONS else OTHER] += count

    def dropped(self, reason: Reason, count: int = 1) -> None:
        """Count input that was dropped or refused."""
        self._dropped[reason] += count

    def dead_letter(self, reason: Reason, count: int = 1) -> None:
        """Count frames that were set aside."""
        self._dead_letters[reason] += count

    def rows_written(self, collection: str, count: int) -> None:
        """Count rows that a committed transaction changed in ``collection`` (an NSID)."""
        self._rows[COLLECTIONS.get(collection, OTHER)] += count

    def recompiled(self, kind: str, count: int = 1) -> None:
        """Count prompt versions; ``kind`` is one of :data:`RECOMPILE_KINDS` (KeyError otherwise)."""
        self._recompiles[kind] += count

    def set_prompts(self, by_freshness: Mapping[str, int], by_stale_reason: Mapping[str, int]) -> None:
        """Replace the numbers of prompts, as just read from the database; what is missing is 0."""
        self._read["prompts"] = _filled(by_freshness, FRESHNESS)
        self._read["stale_prompts"] = _filled(by_stale_reason, STALE_REASONS)

    def set_records(self, by_proof: Mapping[tuple[str, str], int], invalid: Mapping[str, int]) -> None:
        """Replace the numbers of records by (collection, proof or '') and of invalid ones by collection (NSIDs)."""
        records: Series = {(name, proof): 0.0 for name in COLLECTION_LABELS for proof in PROOFS}
        for (collection, proof), number in by_proof.items():
            records[COLLECTIONS.get(collection, OTHER), proof or "none"] += number
        self._read["records"] = records
        named = Counter[str]()
        for collection, number in invalid.items():
            named[COLLECTIONS.get(collection, OTHER)] += number
        self._read["invalid_records"] = _filled(named, COLLECTION_LABELS)

    def set_issues(self, by_severity: Mapping[str, int]) -> None:
        """Replace the numbers of integrity issues by severity (KeyError for one that is not on the list)."""
        self._read["integrity_issues"] = _filled(by_severity, SEVERITIES)

    def set_gauge(self, name: str, value: float) -> None:
        """Replace the value of a gauge without labels that is read from outside, such as ``database_bytes``."""
        self._read[name] = {(): value}

    def set_work(self, wants: Mapping[str, int], pending: int) -> None:
        """Replace the numbers of open wants by reason and of pending commits, as just read from the database."""
        self._read["wants"] = _filled(wants, WANT_REASONS)
        self._read["pending"] = {(): pending}

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the exposition and its content type: OpenMetrics 1.0 if ``accept`` names it, else text 0.0.4."""
        if "application/openmetrics-text" in accept:
            body: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]
            return body, OPENMETRICS
        return exposition.generate_latest(self.registry), PLAIN_TEXT

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as of now (the collector interface of prometheus-client)."""
        series = self._series()
        for definition in DEFINITIONS:
            yield _family(definition, series.get(definition.name, {}), self)

    def _series(self) -> dict[str, Series]:
        sources = self._sources.items()
        return {
            "frames_total": {(label, kind): n for label, meter in sources for kind, n in meter.frames.items()},
            "bytes_total": {(label,): meter.bytes for label, meter in sources},
            "reconnects_total": {(label, why): n for label, meter in sources for why, n in meter.reconnects.items()},
            "cursor_seq": {(label,): meter.seq for label, meter in sources if meter.seq is not None},
            "lag_seconds": {(label,): lag for label, lag in self.lags().items()},
            "source_up": {(label,): int(meter.up) for label, meter in sources},
            "operations_total": {(name, action): n for (name, action), n in self._operations.items()},
            "rows_written_total": _single(self._rows),
            "dropped_total": _single(self._dropped),
            "dead_letters_total": _single(self._dead_letters),
            "recompiles_total": _single(self._recompiles),
            "queue_depth": {(queue,): depth() for queue, depth in self._queues.items()},
            "database_up": {(): int(self.database_up)},
            "writer": {(): int(self.writer)},
            "build_info": {(__version__, platform.python_version()): 1},
            **self._read,
        }


def _family(definition: Definition, series: Series, metrics: Metrics) -> Metric:
    name, text, labels = definition.full_name, definition.help, definition.labels
    if definition.kind == "histogram":
        histogram: Histogram = getattr(metrics, definition.name)
        return HistogramMetricFamily(name, text, buckets=histogram.buckets(), sum_value=histogram.total)
    family: CounterMetricFamily | GaugeMetricFamily
    family = (CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
    for values, number in series.items():
        family.add_metric(values, number)
    return family


def _single(counts: Mapping[Reason, int] | Mapping[str, int]) -> Series:
    return {(str(label),): number for label, number in counts.items()}


def _closed(word: str, allowed: Iterable[str]) -> str:
    return word if word in allowed else OTHER


def _filled(counts: Mapping[str, int], allowed: Sequence[str]) -> Series:
    """Return a value for each allowed label; others add up under ``other`` (KeyError if the list has no such)."""
    series: Series = dict.fromkeys(((label,) for label in allowed), 0.0)
    for label, number in counts.items():
        series[(_closed(label, allowed),)] += number
    return series


def metrics_table() -> str:
    """Return every metric as a Markdown table, for the README."""
    lines = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for one in DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.full_name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines) + "\n"
