"""Makes the pictures of the page in ``docs/images``: ``python -m tests.page.screenshots``.

They show the records of :mod:`tests.page.garden`, in a database of their own that is gone afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Page

from indexer.store.statements import schema_sql
from tests.page.browser import visiting
from tests.page.site import garden_site
from tests.postgres import TestCluster

FOLDER = Path(__file__).parents[2] / "docs" / "images"


async def pictures(page: Page, url: str) -> AsyncIterator[str]:
    """Go from page to page; the name of each picture when it is time to take it."""
    await page.goto(url)
    yield "page-overview"
    await page.get_by_role("link", name="Stale prompts").click()
    yield "page-stale"
    await page.get_by_role("link", name="third bed").click()
    yield "page-prompt"
    await page.get_by_role("radio", name="Old: ").last.check()
    await page.emulate_media(color_scheme="dark")
    await page.get_by_role("button", name="Compare").click()
    yield "page-difference"


async def main() -> None:
    """Take all of them, and print their paths."""
    cluster = TestCluster()
    await cluster.start()
    try:
        await cluster.create_template(schema_sql())
        async with cluster.fresh_database() as database, garden_site(database) as site, visiting() as visit:
            async for name in pictures(visit.page, site.url):
                await visit.page.locator("body").screenshot(path=FOLDER / f"{name}.png")
                print(FOLDER / f"{name}.png")
    finally:
        await cluster.stop()


if __name__ == "__main__":
    asyncio.run(main())
