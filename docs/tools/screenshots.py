"""Pictures of a report for the docs, taken in an installed Chromium.

    voidrl report runs/demo -o report.html
    python docs/tools/screenshots.py report.html docs/images

writes `report_desktop.png`, the top of the page at 1280 pixels, and `report_phone.png`, three screens of 375
pixels side by side. `--all` adds whole pages at 1280, 768 and 375 pixels in light and dark, and a PDF.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"),
    *("--no-first-run", "--hide-scrollbars"),
]
DESKTOP, TABLET, PHONE = (1280, 1960), (768, 1024), (375, 812)
PHONE_SCREENS = ("", "#curves", "#coverage")  # the top, and where else there is something to see
GAP, GRAY = 28, (198, 200, 204)


def opened(browser: Any, report: Path, size: tuple[int, int], theme: str, scale: int = 1) -> Any:
    """The report at a size, with the first frames of its videos."""
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme=theme, device_scale_factor=scale
    )
    page.emulate_media(reduced_motion="reduce")
    page.goto(report.resolve().as_uri())
    page.wait_for_timeout(700)
    return page


def shoot_phone(browser: Any, report: Path, out: Path) -> None:
    """Several screens of one page, side by side."""
    page = opened(browser, report, PHONE, "light", scale=2)
    screens = []
    for target in PHONE_SCREENS:
        if target and page.locator(target).count():
            page.evaluate(f"document.querySelector('{target}').scrollIntoView()")
            page.wait_for_timeout(200)
        screens.append(Image.open(io.BytesIO(page.screenshot())))
    width, height = screens[0].size
    whole = Image.new("RGB", (len(screens) * (width + GAP) + GAP, height + 2 * GAP), GRAY)
    for place, screen in enumerate(screens):
        whole.paste(screen, (GAP + place * (width + GAP), GAP))
    whole.resize((whole.width // 2, whole.height // 2), Image.Resampling.LANCZOS).save(out, optimize=True)
    page.close()


def shoot_all(browser: Any, report: Path, folder: Path) -> None:
    """Whole pages and a PDF, to look at."""
    for size in (DESKTOP, TABLET, PHONE):
        for theme in ("light", "dark"):
            page = opened(browser, report, size, theme)
            page.screenshot(path=str(folder / f"whole_{size[0]}_{theme}.png"), full_page=True)
            page.close()
    page = opened(browser, report, DESKTOP, "light")
    page.pdf(path=str(folder / "report.pdf"), format="A4", print_background=True)
    page.close()


def main() -> None:
    """Read the arguments and take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--all", action="store_true", help="whole pages, three widths, both themes, and a PDF"
    )
    options = parser.parse_args()
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        parser.error(f"no browser: expected one of {', '.join(BROWSERS)} to be installed")
    options.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=QUIET)
        page = opened(browser, options.report, DESKTOP, "light")
        page.screenshot(path=str(options.folder / "report_desktop.png"))
        page.close()
        shoot_phone(browser, options.report, options.folder / "report_phone.png")
        if options.all:
            shoot_all(browser, options.report, options.folder)
        browser.close()


if __name__ == "__main__":
    main()
