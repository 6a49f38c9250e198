"""What pages point at exists: links, tests and examples of features, generated pages."""

from __future__ import annotations

import importlib.util
import posixpath
import re
import sys
from importlib.metadata import entry_points

import pytest

from integration.deepspeed.docs_pages import ROOT, pages

LINK = re.compile(r"\]\(([^)\s]+)\)")
EVIDENCE = re.compile(r"\[`([^`]+)`\]\(\.\./((?:tests|examples)/[^)]+)\)")
LINKED = [*pages(), "benchmarks/RESULTS.md"]
PROVEN = ["docs/features.md", "docs/migration.md"]


def fenceless(text: str) -> str:
    """Markdown without its fenced blocks."""
    return re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def prose(page: str) -> str:
    return fenceless((ROOT / page).read_text())


def anchors(page: str) -> set[str]:
    """The names of the headings of a page, as sites and hosts make them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page):
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(str(target.resolve().relative_to(ROOT))), link


@pytest.mark.parametrize("page", PROVEN)
def test_what_a_page_names_as_evidence_exists(page):
    found = EVIDENCE.findall((ROOT / page).read_text())
    assert len(found) > 10
    for name, path in found:
        assert (ROOT / path).exists(), path
        assert name == path or f"def {name}(" in (ROOT / path).read_text(), (name, path)


def test_every_row_of_the_features_has_evidence():
    rows = [line for line in (ROOT / "docs/features.md").read_text().splitlines() if "|" in line]
    rows = [row for row in rows if not row.startswith(("| feature", "| ---"))]
    assert [row for row in rows if not EVIDENCE.search(row)] == []


def test_every_section_is_a_feature():
    text = (ROOT / "docs/features.md").read_text()
    sections = {point.name for point in entry_points(group="deepspeed.sections")}
    assert [name for name in sorted(sections) if f"`{name}" not in text] == []


@pytest.fixture
def program(monkeypatch):
    """Loads a program of docs/ by its name."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_the_page_of_keys_is_up_to_date(program):
    page = program("make_configuration").page()
    assert page == (ROOT / "docs" / "configuration.md").read_text()


def test_every_link_of_the_site_leads_to_a_page_of_it(program):
    assemble = program("assemble")
    docs = ROOT / "docs"
    site = assemble.Site([str(path.relative_to(docs)) for path in docs.rglob("*.md")])
    known = set(site.pages.values())
    for path, text in site.texts.items():
        page = site.pages[path]
        links = LINK.findall(fenceless(assemble.relink(text, path, page, site.pages)))
        inner = [link.partition("#")[0] for link in links if "://" not in link and link[0] != "#"]
        folder = posixpath.dirname(page)
        led = {posixpath.normpath(posixpath.join(folder, link)) for link in inner}
        assert led <= known, path
