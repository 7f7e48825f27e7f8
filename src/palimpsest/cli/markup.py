"""HTML and SVG as text: what is put in is escaped, and a page has all that it needs in itself."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from palimpsest.cli.output import clean


class Html(str):
    """Text that is markup already. Any other text is escaped where it is put in."""

    __slots__ = ()


def shown(text: object) -> Html:
    """Return a text as a page shows it: no markup, and signs that steer or turn text as visible escapes."""
    return text if isinstance(text, Html) else Html(escape(clean(str(text))))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """Return an element. A trailing `_` of an attribute's name falls away, others become `-`; None leaves it out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{shown(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = "".join(map(shown, inside))
    return Html(f"<{name}{given}>{content}</{name}>" if inside else f"<{name}{given}/>")


def joined(parts: list[Html]) -> Html:
    """Return pieces of markup one after the other."""
    return Html("".join(parts))


def svg(width: int, height: int, title: str, description: str, *inside: object, style: str = "") -> Html:
    """Return a drawing that scales, with the words for who cannot see it."""
    about = (tag("title", title), tag("desc", description))
    looks = (tag("style", Html(style)),) if style else ()
    made: Html = tag(
        "svg", *about, *looks, *inside, xmlns="http://www.w3.org/2000/svg", role="img", viewBox=f"0 0 {width} {height}"
    )
    return made


def label(x: float, y: float, *inside: object, class_: str = "", anchor: str = "start") -> Html:
    """Return a line of text in a drawing."""
    return tag("text", *inside, x=f"{x:g}", y=f"{y:g}", class_=class_ or None, text_anchor=anchor)


def table(headings: list[str], rows: list[list[object]], *, figures: int = 0, caption: str = "") -> Html:
    """Return a table; its last `figures` columns are numbers."""

    def cells(name: str, row: list[object]) -> Html:
        numbers = len(row) - figures
        made = [tag(name, cell, class_="n" if place >= numbers else None) for place, cell in enumerate(row)]
        return tag("tr", *made)

    body = tag("tbody", *(cells("td", row) for row in rows)) if rows else Html("")
    head = tag("thead", cells("th", list(headings)))
    about = (tag("caption", caption),) if caption else ()
    return tag("div", tag("table", *about, head, body), class_="wide", tabindex=0)


def looks(name: str) -> str:
    """Return a style sheet of the package."""
    return (files("palimpsest.cli") / "data" / f"{name}.css").read_text("utf-8").strip()


def page(title: str, *sections: object) -> str:
    """Return a page that asks nothing of anybody: no script, no font, no request."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head",
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        tag("title", title),
        tag("style", Html(looks("colours") + "\n" + looks("page"))),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *sections)), lang='en')}\n"
