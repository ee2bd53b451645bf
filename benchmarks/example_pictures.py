"""Pictures of example reports for docs/reading-reports.md, taken in headless Chromium.

python benchmarks/example_pictures.py FOLDER docs/img   (FOLDER holds pool.html and sweep.html)
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

REPORTS = Path("reports")


def main(folder: Path, images: Path) -> None:
    from playwright.sync_api import sync_playwright

    images.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        first(browser, folder / "pool.html", images / "first-screen.png")
        chart(browser, folder / "pool.html", "pool", images / "pool.png")
        chart(browser, folder / "pool.html", "ttft-parts", images / "ttft-parts.png")
        chart(browser, folder / "pool.html", "gaps", images / "gaps.png")
        chart(browser, folder / "sweep.html", "capacity", images / "capacity.png")
        first(browser, REPORTS / "example_before_launch.html", images / "before-launch.png")
        first(
            browser, REPORTS / "example_shared_prefix.zh.html", images / "zh-dark-phone.png", 390, "dark", 780
        )
        browser.close()


def _page(browser: Any, path: Path, width: int, height: int, scheme: str) -> Any:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(path.resolve().as_uri())
    return page


def first(
    browser: Any, path: Path, to: Path, width: int = 1000, scheme: str = "light", height: int = 760
) -> None:
    """The first screen as it opens."""
    _page(browser, path, width, height, scheme).screenshot(path=to)


def chart(browser: Any, path: Path, name: str, to: Path) -> None:
    """One chart with its heading, by the words of its section's table."""
    page = _page(browser, path, 1000, 900, "light")
    names = {"pool": "kv-pool", "capacity": "sweep"}
    page.locator(f"figure:has(table[data-name={names.get(name, name)}])").first.screenshot(path=to)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
