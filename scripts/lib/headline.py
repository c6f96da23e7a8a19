"""Draw docs/results/headline.svg, the picture of README: the first setting of network.json.

Run it after the network was measured anew; a test compares.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
NAMES = {
    "dense": "dense Horovod",
    "fp16": "Horovod's fp16",
    "topk": "exact top-k",
    "dgc": "DGC",
    "auto": "hvd_sparse (auto)",
}
PARTS = (("send", "#e57373"), ("select", "#4f86c6"), ("rest", "#a5b64c"))
WIDTH, LEFT, BAR, TOP = 760, 150, 26, 62


def drawn(setting: dict) -> str:
    """Return a setting's bars as SVG: the mean milliseconds of a step, and of what of it."""
    summary = setting["summary"]
    rows = [(name, summary[name]["phases_ms"]) for name in NAMES if name in summary]
    longest = max(sum(phases.values()) for _, phases in rows)
    scale = (WIDTH - LEFT - 90) / longest
    wire = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}.get(setting["rate"], setting["rate"])
    model = {"resnet50": "ResNet-50's sizes"}.get(setting["model"], setting["model"])
    compute = "no backward pass" if setting["compute"] == "none" else "with a backward pass"
    title = f"Milliseconds a step over {wire}: {setting['hosts']} hosts, {model}, {compute}"
    height = TOP + len(rows) * (BAR + 10) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>',
        f'<text x="14" y="24" font-size="15" fill="#263238">{escape(title)}</text>',
    ]
    for number, (part, colour) in enumerate(PARTS):
        x = LEFT + 110 * number
        out.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 17}" y="46" font-size="12" fill="#455a64">{part}</text>')
    for number, (name, phases) in enumerate(rows):
        out += _bar(NAMES[name], phases, TOP + number * (BAR + 10), scale)
    return "\n".join([*out, "</svg>"]) + "\n"


def _bar(name: str, phases: dict[str, float], y: int, scale: float) -> list[str]:
    rest = sum(phases.values()) - sum(phases.get(part, 0.0) for part, _ in PARTS)
    out = [f'<text x="14" y="{y + 18}" font-size="13" fill="#263238">{escape(name)}</text>']
    x = float(LEFT)
    for part, colour in PARTS:
        width = scale * (rest if part == "rest" else phases.get(part, 0.0))
        out.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
        )
        x += width
    total = sum(phases.values())
    out.append(
        f'<text x="{x + 6:.1f}" y="{y + 18}" font-size="13" fill="#263238">{total:,.0f}</text>'
    )
    return out


def current() -> str:
    """Return the picture of what is measured now."""
    document = json.loads((RESULTS / "network.json").read_text(encoding="utf-8"))
    return drawn(document["settings"][0])


if __name__ == "__main__":
    (RESULTS / "headline.svg").write_text(current(), encoding="utf-8")
