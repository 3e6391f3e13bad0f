"""What the site needs beside the pages of docs/: the changes and the reference as pages, links to these and to files that are not on the
site, and a check that a page loads nothing from other hosts.
"""

import logging
import re
from functools import cache
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from tools.pages.built import pages  # noqa: TID251 - the site is no part of what runs

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

TOP = Path(__file__).parents[2]
DOCS = TOP / "docs"
STYLE = Path(__file__).parent / "site.css"
CHANGES = "changes.md"
# What a browser loads by itself, and not when a reader follows a link.
_LOADED_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source|link(?![^>]*rel="?(?:canonical|next|prev)))\b[^>]*\s(?:src|href)=["']?(?P<url>(?:https?:)?//[^"'\s>]+)"""
)
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<path>\.\./[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_BUILT = re.compile(r"(?<!\[)`(?P<name>[a-z-]+\.(?:html|json))`")
# With `strict`, a warning below this name fails the build.
_LOG = logging.getLogger("mkdocs.hooks.site")


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    changes = (TOP / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, CHANGES, content=changes))
    files.append(File.generated(config, STYLE.name, content=STYLE.read_text()))
    for name, text in _built().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: "Page", config: "MkDocsConfig", files: "Files") -> str:  # noqa: ARG001 - MkDocs' names
    """A link to a file outside of docs/ becomes the path of that file, and the name of a page that only the site has becomes a link.

    A link that leads nowhere stays, and fails the build.
    """
    folder = (DOCS / page.file.src_uri).parent

    def without_link(link: re.Match[str]) -> str:
        file = (folder / link["path"]).resolve()
        if file.is_relative_to(DOCS) or not file.exists():
            return link[0]
        return f"{link['text']} (`{file.relative_to(TOP)}`)"

    def with_link(name: re.Match[str]) -> str:
        built = name["name"].replace(".html", ".md")
        return f"[{name['name']}]({relpath(DOCS / built, folder)})" if built in _built() else name[0]

    return _BUILT.sub(with_link, _LINK.sub(without_link, markdown))


@cache
def _built() -> dict[str, str]:
    return pages()


def on_post_page(output: str, *, page: "Page", config: "MkDocsConfig") -> str:  # noqa: ARG001 - MkDocs' names
    for found in _LOADED_FROM_ELSEWHERE.finditer(output):
        _LOG.warning("%s loads %s from another host", page.file.src_uri, found["url"])
    return output
