"""The picture of :doc:`howto/dashboard`.

``python docs/dashboard_picture.py`` takes it again.  It needs MariaDB,
Playwright and Chromium, as the tests in the browser do.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.servers.dashboard_scene import DashboardScene  # noqa: E402


def take_picture(address: str, path: Path) -> None:
    """Store what the page of the fleet looks like."""
    program = os.environ.get("SQLA_SHARD_CHROMIUM", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(program),
            args=["--headless", "--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 660})
        # The second time with sizes.
        for _ in range(2):
            page.goto(address)
        # The path of the topology is that of a temporary directory.
        page.locator(".source").evaluate(
            "element => element.textContent = 'topology.json'"
        )
        page.locator('[data-live][data-state="live"]').wait_for()
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, DashboardScene(Path(folder)) as scene:
        scene.make_hot(304)
        take_picture(scene.site.address, ROOT / "docs" / "dashboard.png")
