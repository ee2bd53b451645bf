"""A real headless Chromium that watches a page: dialogs, requests, console, boxes that overlap."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

Scheme = Literal["light", "dark"]

MEASURE = """() => {
  const found = { overlaps: [], outside: [], charts: 0, empty: [] };
  found.overflow = document.documentElement.scrollWidth - innerWidth;
  document.querySelectorAll('figure > svg').forEach(svg => {
    if (getComputedStyle(svg).display === 'none') return;
    found.charts += 1;
    const name = svg.querySelector('title').textContent, frame = svg.getBoundingClientRect();
    if (frame.height < 20 || !svg.querySelector('path,rect,circle')) found.empty.push(name);
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([t, b]) => {
      if (b.left < frame.left - 2 || b.right > frame.right + 3) found.outside.push(`${name}: ${t}`);
    });
    texts.forEach(([t, a], i) => texts.slice(i + 1).forEach(([u, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.overlaps.push(`${name}: ${t} | ${u}`);
    }));
  });
  return found;
}"""


@dataclass
class Seen:
    """What happened while a page was open."""

    page: Any
    dialogs: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)

    def quiet(self) -> bool:
        return not self.dialogs and not self.requests and not self.console


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests of a session."""
    if CHROMIUM is None:
        pytest.skip("install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="install playwright")
    with sync_api.sync_playwright() as driver:
        # Root (as in a container) has no sandbox to drop into; the page under test is ours.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, *, width: int = 1280, scheme: Scheme = "light") -> Iterator[Seen]:
    """The page at `path`, from the disk, with every event kept."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
    )
    try:
        page = context.new_page()
        seen = Seen(page)
        page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
        page.on("console", lambda message: seen.console.append(message.text))
        page.on("pageerror", lambda error: seen.console.append(str(error)))
        own = path.as_uri()
        page.on(
            "request",
            lambda request: (
                seen.requests.append(request.url) if not request.url.startswith((own, "blob:")) else None
            ),
        )
        page.goto(own)
        yield seen
    finally:
        context.close()
