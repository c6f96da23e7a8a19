"""Draw docs/guide/pictures/way.svg: the path of a gradient through one rank, with its bucket.

Run it after the path has changed.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "pictures" / "way.svg"
TITLE = "The path of a gradient through one rank"
WIDTH, HEIGHT, TALL = 900, 430, 54
DARK, PALE, LINE, OURS = "#263238", "#eceff1", "#607d8b", "#00796b"
HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"
 aria-label="{TITLE}">
<title>{TITLE}</title>
<style>text{{font-family:sans-serif;text-anchor:middle}}.b{{font-size:15px}}.s{{font-size:12px}}</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{DARK}"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>"""


def box(x: int, y: int, wide: int, name: str, words: str, *, is_sent: bool = False) -> str:
    """Return the box of a step of the path."""
    fill, ink = (OURS, "#ffffff") if is_sent else (PALE, DARK)
    middle = x + wide / 2
    return (
        f'<rect x="{x}" y="{y}" width="{wide}" height="{TALL}" rx="6" fill="{fill}" '
        f'stroke="{LINE}"/>\n'
        f'<text x="{middle:g}" y="{y + 23}" class="b" fill="{ink}">{escape(name)}</text>\n'
        f'<text x="{middle:g}" y="{y + 41}" class="s" fill="{ink}">{escape(words)}</text>'
    )


def arrow(*points: tuple[int, int]) -> str:
    """Return an arrow along some points."""
    way = " L".join(f"{x} {y}" for x, y in points)
    return f'<path d="M{way}" stroke="{DARK}" stroke-width="1.6" fill="none" marker-end="url(#a)"/>'


def words(x: int, y: int, text: str, size: str = "s", ink: str = LINE) -> str:
    """Return a line of text around ``x``."""
    return f'<text x="{x}" y="{y}" class="{size}" fill="{ink}">{escape(text)}</text>'


def frame(x: int, y: int, wide: int, tall: int) -> str:
    """Return a frame around the steps that one call does for a whole bucket."""
    return (
        f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" rx="8" fill="none" '
        f'stroke="{OURS}" stroke-width="1.6" stroke-dasharray="6 4"/>'
    )


def drawn() -> str:
    """Return the picture as SVG."""
    parts = [
        HEAD,
        words(450, 26, "compress: in the backward pass, one gradient at a time", "b", DARK),
        box(14, 60, 140, "gradient", "recorded in its bucket"),
        box(14, 160, 140, "residual", "entries not sent so far"),
        frame(186, 44, 506, 130),
        words(439, 68, "for all tensors of a bucket, when it is full", ink=OURS),
        box(200, 84, 120, "memory", "adds both"),
        box(380, 84, 120, "selector", "chooses entries"),
        box(560, 84, 120, "codec", "writes bytes"),
        box(726, 84, 160, "exchange", "one message per bucket", is_sent=True),
        arrow((154, 87), (198, 104)),
        arrow((154, 180), (198, 128)),
        arrow((320, 111), (378, 111)),
        arrow((500, 111), (558, 111)),
        arrow((680, 111), (724, 111)),
        arrow((440, 138), (440, 232), (84, 232), (84, 216)),
        words(262, 250, "other entries and rounding errors stay in the residual"),
        frame(330, 278, 378, 118),
        words(519, 388, "for all tensors of a bucket, when all messages have arrived", ink=OURS),
        box(726, 300, 160, "allgather", "messages of all ranks", is_sent=True),
        box(572, 300, 120, "decode", "checks and reads"),
        box(346, 300, 170, "sum", "in rank order, scaled"),
        box(150, 300, 140, "optimizer", "same input on all ranks"),
        arrow((806, 138), (806, 298)),
        arrow((726, 327), (694, 327)),
        arrow((572, 327), (518, 327)),
        arrow((346, 327), (292, 327)),
        words(450, 418, "decompress: when the optimizer asks for its results", "b", DARK),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
