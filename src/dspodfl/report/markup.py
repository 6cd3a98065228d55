"""HTML as text that knows it is HTML, and figures as parts of a page."""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

_DRAWN = {"g", "defs", "path", "use", "clipPath", "rect", "circle", "ellipse", "line", "text", "tspan", "image"}
"""The elements of a figure that are taken over; what else an SVG may hold could act on the whole page."""


class Html(str):
    """Text that is HTML already; any other string is escaped where it is put into a page."""

    __slots__ = ()


def el(name: str, /, *inside: str, **attributes: str | None) -> Html:
    """An element: what is inside and its attributes are escaped, unless they are HTML; ``class_`` is ``class``."""
    told = "".join(f' {_attribute(key)}="{escape(value)}"' for key, value in attributes.items() if value is not None)
    if name in ("meta", "img"):
        return Html(f"<{name}{told}>")
    content = join(*inside)
    # only the elements of an SVG may be closed at once
    if not content and name in _DRAWN:
        return Html(f"<{name}{told}/>")
    end = "\n" if name in ("html", "head", "body", "section", "nav", "main", "figure", "table", "tr", "details") else ""
    return Html(f"<{name}{told}>{content}</{name}>{end}")


def _attribute(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def join(*parts: str) -> Html:
    """Parts one behind the other; what is not HTML is escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def prose(text: str) -> Html:
    """Text in lines of any length as one paragraph's; what stands between `…` is code."""
    pieces = re.split(r"`([^`]+)`", " ".join(text.split()))
    return join(*(el("code", piece) if at % 2 else piece for at, piece in enumerate(pieces)))


def figure(drawing: Html, caption: str, label: str) -> Html:
    """A drawing that scrolls in its own box, and what is said below it."""
    card = el("div", drawing, class_="card scroll", tabindex="0", role="group", aria_label=label)
    return el("figure", card, el("figcaption", caption))


def inline(svg: bytes, number: int, label: str) -> Html:
    """An SVG for the inside of a page: its ids made its own, without what could act outside of it."""
    root = ElementTree.fromstring(svg)  # noqa: S314  expat bounds what entities grow to
    inside = join(*(_drawn(child, f"figure_{number}_") for child in root))
    size = {key: root.get(key) for key in ("width", "height", "viewBox")}
    width = re.fullmatch(r"[0-9.]+(pt|px)?", str(size["width"]))
    return el("svg", inside, **size, style=f"--width:{width[0]}" if width else None, role="img", aria_label=label)


def _drawn(element: ElementTree.Element, prefix: str) -> Html:
    tag = element.tag.rpartition("}")[2]
    if tag not in _DRAWN:
        return Html("")
    attributes = {}
    for name, value in element.attrib.items():
        name = name.rpartition("}")[2]
        if name == "id":
            value = prefix + value
        elif name == "href" and value.startswith("#"):
            value = f"#{prefix}{value[1:]}"
        elif name.startswith("on") or (name == "href" and not value.startswith("data:image/png;")):
            continue
        value = re.sub(r"url\(#", f"url(#{prefix}", value)
        if not re.search(r"url\((?!#)", value):
            attributes[name] = value
    text = element.text if element.text and element.text.strip() else ""
    return el(tag, text, *(_drawn(child, prefix) for child in element), **attributes)
