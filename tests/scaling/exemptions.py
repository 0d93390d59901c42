"""Which statement breaks which rule, and why: none does unless it is here, and nothing is here in vain.

``MEANT`` are statements for which the rule is not meant. ``OPEN`` are those that have to be written anew before Citus
can run them; docs/scaling.md names each. Statements of the page for people count as one, by their file.
"""

from __future__ import annotations

MEANT = {
    ("writes_name_their_dids", "check_hidden"): "all shards on purpose: after a stream was lost",
    ("writes_name_their_dids", "want_every_repo"): "all shards on purpose: after a stream was lost",
    ("writes_name_their_dids", "retry_wants"): "all shards on purpose: at the start of a run of its own",
    ("limits_are_ordered", "pages.sql"): "counts up to a bound: which rows are counted says nothing",
    ("limits_are_ordered", "letta_store.pair_facts"): "by the whole key: there is at most one",
}
OPEN = {
    ("laterals_need_no_merging", "refresh"): "needs its OFFSET to look prompts up by key",
    ("joins_are_on_did", "pages.sql"): "looks up agents of other repositories",
    ("guards_are_fetched_first", "pages.sql"): "fetches a whole table for a page",
    ("laterals_need_no_merging", "pages.sql"): "counts conversations of each agent, up to a bound",
}
EXEMPT = MEANT | OPEN
