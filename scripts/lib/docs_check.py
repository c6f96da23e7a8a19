"""Look at the built site: no page loads anything from elsewhere, and notebooks show their pictures.

Links may lead elsewhere. The exit code is 1 if a page does not hold.
"""

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


def mistakes(folder: Path) -> list[str]:
    """Return what is wrong with a built site."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html"))}
    found = [f"{path} loads {each}" for path, text in pages.items() for each in loads_of(text)]
    notebooks = {path: text for path, text in pages.items() if path.parent.name == "notebooks"}
    bare = [path for path, text in notebooks.items() if "data:image/png" not in text]
    found += [f"{path} shows no picture: was it run?" for path in bare]
    return found if notebooks else [*found, f"{folder} has no notebooks"]


if __name__ == "__main__":
    wrong = mistakes(Path(sys.argv[1]))
    print("\n".join(wrong) or "    no page loads anything from elsewhere; notebooks have pictures")
    sys.exit(1 if wrong else 0)
