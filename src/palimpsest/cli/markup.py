"""HTML and SVG as text. Content is escaped where it is inserted, and a page is self-contained."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from palimpsest.cli.output import clean


class Html(str):
    """Text that is markup already. Any other text is escaped where it is inserted."""

    __slots__ = ()


def shown(text: object) -> Html:
    """Return a text as markup that shows it: escaped, and neutralised like `output.clean`. Markup stays as it is."""
    return text if isinstance(text, Html) else Html(escape(clean(str(text))))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """Return an element. In attribute names a trailing `_` is dropped, others become `-`; None omits an attribute."""
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{shown(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = "".join(map(shown, inside))
    return Html(f"<{name}{rendered}>{content}</{name}>" if inside else f"<{name}{rendered}/>")


def joined(parts: list[Html]) -> Html:
    """Return the pieces of markup joined together."""
    return Html("".join(parts))


def svg(width: int, height: int, title: str, description: str, *inside: object, style: str = "") -> Html:
    """Return a scalable drawing; `title` and `description` are for readers who cannot see it."""
    about = (tag("title", title), tag("desc", description))
    styles = (tag("style", Html(style)),) if style else ()
    box = f"0 0 {width} {height}"
    return tag("svg", *about, *styles, *inside, xmlns="http://www.w3.org/2000/svg", role="img", viewBox=box)


def label(x: float, y: float, *inside: object, class_: str = "", anchor: str = "start") -> Html:
    """Return a line of text in a drawing."""
    return tag("text", *inside, x=f"{x:g}", y=f"{y:g}", class_=class_ or None, text_anchor=anchor)


def table(headings: list[str], rows: list[list[object]], *, figures: int = 0, caption: str = "") -> Html:
    """Return a table whose last `figures` columns are numbers."""

    def cells(name: str, row: list[object]) -> Html:
        numbers = len(row) - figures
        return tag("tr", *(tag(name, cell, class_="n" if i >= numbers else None) for i, cell in enumerate(row)))

    body = tag("tbody", *(cells("td", row) for row in rows)) if rows else Html("")
    head = tag("thead", cells("th", list(headings)))
    about = (tag("caption", caption),) if caption else ()
    return tag("div", tag("table", *about, head, body), class_="wide", tabindex=0)


def looks(name: str) -> str:
    """Return the package's style sheet with this name."""
    return (files("palimpsest.cli") / "data" / f"{name}.css").read_text("utf-8").strip()


def page(title: str, *sections: object) -> str:
    """Return a self-contained page: it has no scripts and loads no fonts or other resources."""
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
