"""Exit with 1 if a page of the built site loads anything from elsewhere; links may lead there."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
HARMLESS = {"canonical", "next", "prev"}


class Loads(HTMLParser):
    """Collects what a page loads by itself from another address."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADING.get(tag, "")) or ""
        if address.startswith(("http:", "https:", "//")) and given.get("rel") not in HARMLESS:
            self.found.append(f"{tag} {address}")


def loads_of(page: str) -> list[str]:
    """Return what a page's text loads from elsewhere."""
    parser = Loads()
    parser.feed(page)
    return parser.found


def main(folder: Path) -> int:
    pages = sorted(folder.rglob("*.html"))
    found = [f"{page}: {load}" for page in pages for load in loads_of(page.read_text("utf-8"))]
    print(
        "\n".join(found) or f"    {len(pages)} pages, none of which loads anything from elsewhere"
    )
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
