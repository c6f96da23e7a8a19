"""Check that no page of the built site loads anything from elsewhere, and notebooks have pictures.

Links may lead to other sites. The exit code is 1 if a page fails the check.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
HARMLESS = {"canonical", "next", "prev"}


class Page(HTMLParser):
    """A parsed page, with a list of what a browser loads for it from elsewhere.

    Attributes
    ----------
    loaded : tags that load from other sites, with the addresses
    drawn : number of pictures that are part of the page itself
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.drawn = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADING.get(tag, "")) or ""
        self.drawn += tag == "img" and address.startswith("data:image/png")
        if address.startswith(("http:", "https:", "//")) and given.get("rel") not in HARMLESS:
            self.loaded.append(f"{tag} {address}")


def mistakes(folder: Path) -> list[str]:
    """Return a line for each mistake in a built site."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    found = [f"{path} loads {each}" for path, page in pages.items() for each in page.loaded]
    notebooks = {path: page for path, page in pages.items() if path.parent.name == "notebooks"}
    bare = [path for path, page in notebooks.items() if not page.drawn]
    found += [f"{path} shows no picture: was it run?" for path in bare]
    return sorted(found) if notebooks else [*found, f"{folder} has no notebooks"]


if __name__ == "__main__":
    wrong = mistakes(Path(sys.argv[1]))
    print("\n".join(wrong) or "    no page loads from elsewhere; notebooks have pictures")
    sys.exit(1 if wrong else 0)
