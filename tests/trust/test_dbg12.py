from tests.trust.test_commands import *
async def test_dbg(site):
    r = await site.backfill()
    print(r)
    print(await site.sql.fetch("select did, records, want from letta_store.repo"))
    print(await damage(site))
    print(await site.command("check", "--repair"))
    print(await wants(site.sql))
    print(await site.run_once())
    print(await site.sql.fetch("select did, rev, snapshot_rev, want, want_reasons, attempts, last_error from letta_store.repo"))
    print(await site.outward("check", "--remote"))
    assert 0
