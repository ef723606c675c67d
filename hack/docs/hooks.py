# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs: pages from outside of docs/, and links to the repository's files.

Links are written as GitHub wants them: relative to the file that they are in. In the site, one to a page leads to that
page, and one to any other file leads to the repository. Links to nothing stay as they are, for MkDocs to report.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Pages that are beside what they describe, by their names in the site.
PAGES = {
    "README.md": "index.md",
    "python/README.md": "loader.md",
    "runtimes/README.md": "runtimes.md",
    "CONTRIBUTING.md": "contributing.md",
}
GENERATED = "docs/reference/"
_LINK = re.compile(r"(?<=\]\()([^()\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds PAGES."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page, and says where it can be edited."""
    source = Path(str(page.file.abs_src_path)).relative_to(ROOT).as_posix()
    repository = config.extra["repository"]
    page.edit_url = None if source.startswith(GENERATED) else f"{repository}/edit/main/{source}"
    return _LINK.sub(lambda link: rewrite(link[0], source, page.file.src_uri, repository), markdown)


def rewrite(link: str, source: str, page: str, repository: str) -> str:
    """Returns the link as the site has it. `source` is the page's file below ROOT, `page` its name in the site."""
    path, anchor = re.fullmatch(r"([^#]*)(#.*)?", link).groups(default="")
    if not path or ":" in path or path.startswith("/"):
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / target).exists() or target.startswith(".."):
        return link
    if (own := PAGES.get(target)) or (target.startswith("docs/") and (ROOT / target).is_file()):
        return posixpath.relpath(own or target.removeprefix("docs/"), posixpath.dirname(page) or ".") + anchor
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    return f"{repository}/{kind}/main/{target}{anchor}"
