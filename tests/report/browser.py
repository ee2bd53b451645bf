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

CONTRAST = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => {
    for (let e = node; e; e = e.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const bad = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, box = e.getBoundingClientRect();
    if (!walk.currentNode.data.trim() || !box.width || !box.height || e.closest('script,style,title,desc')) {
      continue;
    }
    const style = getComputedStyle(e), over = e.classList.contains('on');
    if (over || style.visibility === 'hidden') continue;
    const ink = parse(e.closest('svg') ? style.fill : style.color), paper = ground(e);
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    const name = `${e.tagName}.${e.className.baseVal ?? e.className}`;
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.add(`${name} ${ink} on ${paper}`);
  }
  return [...bad];
}"""
"""Texts whose contrast with what is behind them is below 4.5 (WCAG 2.2, 1.4.3); not those on a bar."""


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
