# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The site that `make docs` builds: where its links lead, what it loads, and what makes the build fail."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = re.compile(r"https://github\.com/kubeflow/datacache/(?:blob|tree|edit)/main/([^#]+)")
COPIED = ["docs", "hack/docs", "runtimes", "python/src", "python/README.md", "README.md", "CONTRIBUTING.md"]
COPIED += ["mkdocs.yml"]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}  # by tag, the attribute


class Html(HTMLParser):
    """The ids of a page, the addresses that it links to, and those that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element's id and addresses."""
        given = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and (href := given.get("href")):
            self.links.add(href)
        address = given.get(LOADED.get(tag, ""))
        if address and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.add(address)


@pytest.fixture(scope="module")
def site() -> dict[str, Html]:
    """The pages of bin/site by path."""
    folder = ROOT / "bin/site"
    pages = {page.relative_to(folder).as_posix(): Html(page.read_text()) for page in folder.rglob("*.html")}
    assert len(pages) > 40, "bin/site has few pages: run make docs"
    return pages


def test_links_lead_somewhere(site: dict[str, Html]) -> None:
    broken = []
    for name, page in site.items():
        if name == "404.html":
            continue  # its links are from the server's root
        for link in page.links:
            if inside := REPOSITORY.match(link):
                if not (ROOT / unquote(inside[1])).exists():
                    broken.append(f"{name}: {link}")
            elif not urlsplit(link).scheme:
                to = urlsplit(urljoin(name, link))
                path = unquote(to.path)
                target = path if path.endswith(".html") else f"{path.rstrip('/')}/index.html".lstrip("./")
                at = site.get(target)
                if at is None and not (ROOT / "bin/site" / path).is_file():
                    broken.append(f"{name}: {link}")
                elif at is not None and to.fragment and unquote(to.fragment) not in at.ids | {"__top"}:
                    broken.append(f"{name}: {link}: no such heading")
    assert not broken, "\n".join(sorted(broken))


def test_links_to_the_repository_are_rewritten(site: dict[str, Html]) -> None:
    links = site["use/index.html"].links
    assert "https://github.com/kubeflow/datacache/blob/main/python/examples/reviews.py" in links
    assert {"../runtimes/", "../install/", "../operate/#which-table-which-rows"} <= links
    assert "https://github.com/kubeflow/datacache/edit/main/docs/use.md" in links
    assert not any("edit/main" in link for link in site["reference/datacache/index.html"].links)


def test_the_page_on_bert_has_the_script_that_runs() -> None:
    script = (ROOT / "docs/examples/bert.py").read_text()
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/bert.md").read_text(), re.DOTALL)
    assert script.endswith(shown)
    assert "def train_bert(" in shown


def test_nothing_is_loaded_from_elsewhere(site: dict[str, Html]) -> None:
    elsewhere = {f"{name}: {at}" for name, page in site.items() for at in page.loaded if urlsplit(at).netloc}
    for style in (ROOT / "bin/site").rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", style.read_text())
        elsewhere |= {f"{style}: {at}" for at in addresses}
    assert not elsewhere, "\n".join(sorted(elsewhere))


@pytest.mark.parametrize("package", ["kubeflow_datacache", "kubeflow_datacache.torch", "kubeflow_datacache.sdk"])
def test_the_reference_has_every_public_name(package: str, site: dict[str, Html]) -> None:
    source = ROOT / "python/src" / package.replace(".", "/") / "__init__.py"
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    ids = site["reference/python/index.html"].ids
    missing = [name for name in names if name != "__version__" and f"{package}.{name}" not in ids]
    assert not missing, f"docs/reference/python.md has no ::: {package}. of {missing}"


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    with (tmp_path / "docs/use.md").open("a") as page:
        page.write("\n[page](gone.md) [heading](install.md#gone) [own](#nowhere) [file](../gone.yaml)\n")
    (tmp_path / "docs" / "unlisted.md").write_text("# Not in nav\n")
    run = subprocess.run(
        [os.environ["DATACACHE_DOCS_PYTHON"], "-m", "mkdocs", "build", "--site-dir", tmp_path / "site"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0, run.stderr
    for part in ("gone.md", "install.md#gone", "#nowhere", "../gone.yaml", "unlisted.md"):
        assert part in run.stderr, run.stderr
