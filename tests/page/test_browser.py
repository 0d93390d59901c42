"""The page in a real browser: readable by everybody, without scripts, whatever the records hold."""

from __future__ import annotations

from time import monotonic

import pytest

from indexer.page.shown import link
from tests.page.browser import barriers, visiting
from tests.page.garden import BEDS, GARDENER, ROSA, agent, commits
from tests.page.site import KINDS, garden_site, served

SLOW = 5.0  # seconds; an answer that took so long did harm
NASTY = """"'><script>alert(1)</script><img src=x onerror=alert(2)><style>*{display:none}</style>\
</td></table></pre></title><svg/onload=alert(3)><a href="javascript:alert(4)">x</a>{{ 7 * 7 }}\u202egnp.exe\u2066&lt;"""
MARKED = NASTY.replace("\u202e", "⟨U+202E⟩").replace("\u2066", "⟨U+2066⟩")
STRANGER = agent("did:plc:nastynastynastynastynast", "nasty", NASTY, NASTY)


async def test_every_page_is_free_of_barriers(database: str) -> None:
    """Axe finds nothing serious or critical on any kind of page, in light and in dark."""
    async with garden_site(database) as site:
        site.reasons = ["source firehose:relay.example is waiting"]
        async with visiting(scripts=True) as visit:
            for kind, path in KINDS.items():
                await visit.page.goto(site.url + path)
                assert await barriers(visit.page) == [], kind
                await visit.page.emulate_media(color_scheme="dark")
                assert await barriers(visit.page, rule="color-contrast") == [], f"{kind} in the dark"
                await visit.page.emulate_media(color_scheme="light")


async def test_a_barrier_would_be_seen(database: str) -> None:
    """The look for barriers is no dead letter: a control without a name, and text too faint, are found."""
    async with visiting(scripts=True) as visit:
        await visit.page.set_content("<html lang=en><title>t</title><input><p style='color:#ccc'>faint</p></html>")
        found = await barriers(visit.page)
    assert {line.split()[1] for line in found} == {"label:", "color-contrast:"}


async def test_the_way_from_the_overview_to_a_difference_needs_no_script(database: str) -> None:
    """With scripts off: stale prompts, one of them, why, its compiles, two of them compared. All from this host."""
    async with garden_site(database) as site, visiting() as visit:
        page = visit.page
        await page.goto(site.url)
        await page.get_by_role("link", name="Stale prompts").click()
        await page.get_by_role("link", name="What to plant in the third bed").click()
        assert "the agent" not in await page.title()
        evidence = page.get_by_role("region", name="Evidence")
        assert "rawSystemHash" in await evidence.inner_text()
        assert GARDENER.uri in await evidence.inner_text()
        kinds = page.get_by_role("region", name="Compiles").locator("tbody td:nth-child(2)")
        assert await kinds.all_inner_texts() == ["touch", "full recompile", "memory update", "first seen"]
        await page.get_by_role("radio", name="Old: ").last.check()
        await page.get_by_role("button", name="Compare").click()
        changes = page.get_by_role("region", name="Difference of content")
        assert await changes.locator("del").all_inner_texts() == [" and beans in two", "evening"]
        assert await changes.locator("ins").all_inner_texts() == [", beans and chard in three", "early morning"]
        assert visit.trouble == []
        assert [url for url in visit.requested if not url.startswith(site.url)] == []


@pytest.mark.parametrize("scripts", [False, True])
async def test_nothing_in_a_record_does_harm(database: str, scripts: bool) -> None:
    """Markup, quotes, overrides of direction and 200 kB of text in every field: shown as text, quickly, and no more.

    No dialog, no message of the browser (so no breach of the policy either), no element that isn't the page's own, no
    link but to the page, nothing asked of anybody else.
    """
    plain, nasty = STRANGER, NASTY * (200_000 // len(NASTY))
    async with garden_site(database) as site, visiting(scripts=scripts) as visit:
        more = {"memfsRevision": nasty, "model": nasty, "name": nasty}
        old = plain.prompt("nasty", 0, "09:00:00", content=nasty, coreMemory=nasty, memfsRevision=nasty)
        new = plain.prompt("nasty", 0, "10:00:00", content=nasty[::-1], coreMemory=NASTY, memfsRevision=nasty)
        await site.index.take(commits(1, plain.conversation("nasty", nasty, role=nasty), old))
        await site.index.take(commits(2, plain.record(system=nasty, **more), new))
        paths = {
            "/stale": "/stale",
            "/agents": link("/agents", of=plain.did),
            "/agent": link("/agent", did=plain.did, rkey="nasty"),
            "/repo": link("/repo", did=plain.did),
            "/prompt": link("/prompt", did=plain.did, rkey="nasty"),
            "/difference": link("/difference", did=plain.did, rkey="nasty"),
        }
        for path, url in paths.items():
            started = monotonic()
            response = await visit.page.goto(site.url + url)
            assert response is not None
            assert response.status == 200
            assert monotonic() - started < SLOW, path
            assert MARKED[:80] in await visit.page.content() or MARKED[:20] in await visit.page.inner_text("main"), path
            assert {"script", "img", "style", "svg"}.isdisjoint(await visit.elements()), path
            links = await visit.page.locator("[href]").evaluate_all("all => all.map(one => one.getAttribute('href'))")
            assert [url for url in links if not url.startswith(("/", "#"))] == [], path
        assert visit.trouble == []
        assert [url for url in visit.requested if not url.startswith(site.url)] == []


async def test_scripts_could_not_run_if_they_got_in(database: str) -> None:
    """The policy is in force: a script that is put into the page does not run, and the browser says why."""
    async with garden_site(database) as site, visiting(scripts=True) as visit:
        await visit.page.goto(site.url)
        await visit.page.evaluate(
            "() => { const one = document.createElement('script'); one.textContent = 'alert(1)';"
            " document.body.append(one); }"
        )
        assert len(visit.trouble) == 1
        assert "Content Security Policy" in visit.trouble[0]


async def test_the_token_is_asked_for_as_browsers_do(database: str) -> None:
    """A browser that is given the token shows the page; nothing of the token is in any address."""
    token = "correct-horse-battery"
    async with served(database, listen="0.0.0.0", token=token) as site, visiting(user="me", token=token) as visit:
        response = await visit.page.goto(site.url)
        assert response is not None
        assert response.status == 200
        assert await visit.page.title() == "Overview · letta-indexer"
        assert [url for url in visit.requested if token in url] == []


CELLS = ".wide:not(:has(.difference)), table:not(.difference) :is(caption, tbody th, td)"
CUT = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.outerHTML)"


async def test_keyboard_and_small_screens(database: str) -> None:
    """The first tab stop leads past the navigation, and on a telephone nothing is wider than the screen or cut off."""
    async with garden_site(database) as site, visiting() as visit:
        await visit.page.set_viewport_size({"width": 360, "height": 640})
        for path in (*KINDS.values(), link("/prompt", did=ROSA, rkey=BEDS)):
            await visit.page.goto(site.url + path)
            width = await visit.page.locator("html").evaluate("one => one.scrollWidth")
            assert width <= 360, path
            assert await visit.page.locator(CELLS).evaluate_all(CUT) == [], path
        await visit.page.keyboard.press("Tab")
        assert await visit.page.locator(":focus").inner_text() == "Skip to the content"
