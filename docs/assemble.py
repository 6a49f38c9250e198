"""Puts the documentation site together: a hook of mkdocs (see mkdocs.yml).

The pages are the very files that a reader of the repository sees: README.md, those of packages and
examples, benchmark results, and the pages in docs/. Links in them are those that work in the
repository. Here they are turned into links between pages; a link to a source file leads to a page
that shows it, a link to a folder to its README or to a list of its files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yml": "yaml", ".sh": "bash"}
PICTURES = (".png", ".svg")

Pages = dict[str, str]
"""Path in the repository -> path of the page in the site."""


def pages_of_repository() -> Pages:
    """The Markdown files outside docs/ that become pages."""
    pages = {"README.md": "index.md", "benchmarks/RESULTS.md": "benchmarks/index.md"}
    for folder, target in (("packages", "packages"), ("examples", "examples")):
        for readme in sorted((ROOT / folder).glob("*/README.md")):
            name = readme.parent.name
            pages[f"{folder}/{name}/README.md"] = f"{target}/{name}.md"
    for result in sorted((ROOT / "benchmarks/results").glob("*.md")):
        pages[f"benchmarks/results/{result.name}"] = f"benchmarks/{result.name}"
    return pages


def outside_code(markdown: str) -> list[tuple[bool, str]]:
    """The lines in order, each with whether it is prose (not in a fenced block)."""
    fenced, lines = False, []
    for line in markdown.splitlines(keepends=True):
        fence = line.lstrip().startswith("```")
        lines.append((not (fenced or fence), line))
        fenced ^= fence
    return lines


def targets(markdown: str, source: str) -> set[str]:
    """What a page links to in the repository."""
    found = set()
    for prose, line in outside_code(markdown):
        for match in LINK.finditer(line) if prose else ():
            path = resolve(match[2], source)
            if path is not None:
                found.add(path)
    return found


def resolve(target: str, source: str) -> str | None:
    """The existing path in the repository that a link of the file `source` means."""
    if "://" in target or target.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(target)))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def relink(markdown: str, source: str, page: str, pages: Pages) -> str:
    """`markdown` of `source`, with links that work on the page `page` of the site."""

    def replaced(match: re.Match[str]) -> str:
        path = resolve(match[2], source)
        target = pages.get(path or "")
        if target is None:
            return match[0]
        link = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    lines = outside_code(markdown)
    return "".join(LINK.sub(replaced, line) if prose else line for prose, line in lines)


def shown(path: str) -> str:
    """The page that shows a source file, or lists the files of a folder."""
    place = ROOT / path
    if place.is_dir():
        found = sorted(item for item in place.iterdir() if item.suffix in LANGUAGES)
        rows = [f"- [{item.name}]({posixpath.basename(path)}/{item.name})" for item in found]
        return f"# {path}\n\n" + "\n".join(rows) + "\n"
    language = LANGUAGES.get(place.suffix, "text")
    return f"# {path}\n\n````{language}\n{place.read_text()}\n````\n"


class Site:
    """Which page shows which file of the repository."""

    def __init__(self, own: list[str]) -> None:
        self.pages = pages_of_repository()
        self.pages |= {f"docs/{name}": name for name in own}
        self.texts = {path: (ROOT / path).read_text() for path in self.pages if path[-3:] == ".md"}
        self.pictures: list[str] = []
        self._add_linked()
        self.sources = {self.pages[path]: path for path in self.texts}

    def _add_linked(self) -> None:
        """Follow links until every file of the repository that is linked to has a page."""
        waiting = list(self.texts)
        while waiting:
            source = waiting.pop()
            for path in sorted(targets(self.texts[source], source)):
                if path in self.pages:
                    continue
                if path.endswith(PICTURES) and path.startswith("docs/"):
                    self.pages[path] = path.removeprefix("docs/")
                elif path.endswith(PICTURES):
                    self.pages[path] = f"files/{path}"
                    self.pictures.append(path)
                elif f"{path}/README.md" in self.pages:
                    self.pages[path] = self.pages[f"{path}/README.md"]
                else:
                    self.pages[path] = f"source/{path}.md"
                    self.texts[path] = shown(path)
                    if (ROOT / path).is_dir():
                        waiting.append(path)


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside docs/."""
    from mkdocs.structure.files import File

    own = [file.src_uri for file in files.documentation_pages()]
    site = config.extra["assembled"] = Site(own)
    for path, text in site.texts.items():
        page = site.pages[path]
        if not path.startswith("docs/") or page.startswith("source/"):
            files.append(File.generated(config, page, content=text))
    for path in site.pictures:
        page = site.pages[path]
        files.append(File.generated(config, page, content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn the links of a page of the repository into links of the site."""
    site = config.extra["assembled"]
    uri = page.file.src_uri
    return relink(markdown, site.sources.get(uri, uri), uri, site.pages)
