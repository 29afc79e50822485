"""The pictures of the documentation: each is what the script draws today, is valid SVG, and is shown by a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import draw_pictures
import pytest

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", draw_pictures.PICTURES)
def test_a_picture_is_up_to_date_and_fits_its_frame(name: str) -> None:
    committed = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert committed == draw_pictures.PICTURES[name](), "stale: run scripts/draw_pictures.py"
    root = ElementTree.fromstring(committed)
    width = float(root.attrib["width"])
    assert root.find(f"{SVG}title") is not None
    for box in root.iter(f"{SVG}rect"):
        assert float(box.get("x", 0)) + float(box.attrib["width"]) <= width + 0.5


def test_every_picture_is_shown_by_a_page() -> None:
    shown = {
        name for page in DOCS.rglob("*.md") for name in re.findall(r"pictures/(\w+)\.svg", page.read_text())
    }
    files = {file.stem for file in (DOCS / "pictures").glob("*.svg")}
    assert shown == files == set(draw_pictures.PICTURES)


def test_the_architecture_names_every_room() -> None:
    package = DOCS.parent / "specserve"
    rooms = {folder.name for folder in package.iterdir() if (folder / "__init__.py").is_file()}
    words = set(re.findall(r'class="strong">(\w+)<', draw_pictures.architecture()))
    assert words == rooms
