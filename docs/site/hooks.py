"""The pages of the site, for mkdocs (mkdocs.yml names this file). Each Markdown file that git tracks is a page at its own
path, so that a link from one to another is the same on the site as in the repository. A source file or directory that a
page links to is a page too: the file's text, or the directory's list of files."""

import posixpath
import re
import subprocess
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`]*`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!/|https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
ASSETS = (".svg", ".png", ".css")
LANGUAGES = {
    ".cc": "cpp",
    ".h": "cpp",
    ".hpp": "cpp",
    ".py": "python",
    ".sh": "bash",
    ".service": "ini",
    ".conf": "text",
}
NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n"


@cache
def sources() -> "frozenset[str]":
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = listed.stdout.split("\0")
    return frozenset(name for name in names if name and (ROOT / name).is_file())


def page_of(path: str) -> str:
    """The page that a link to `path` opens; `path` itself for pages, pictures, and what is not there."""
    if path in sources():
        return path if path.endswith((".md", *ASSETS)) else f"{path}.md"
    return f"{path}/README.md" if files_of(path) else path


def files_of(directory: str) -> "list[str]":
    return sorted(name for name in sources() if name.startswith(f"{directory}/"))


def rewritten(page: str, markdown: str) -> "tuple[str, set[str]]":
    """The text with its links as links to pages, and the paths that it links to."""
    here = posixpath.dirname(page)
    linked: "set[str]" = set()

    def rewrite(link: "re.Match[str]") -> str:
        path = posixpath.normpath(posixpath.join(here, link[1]))
        linked.add(path)
        return f"]({posixpath.relpath(page_of(path), here or '.')}{link[2] or ''})"

    parts = CODE.split(markdown)
    parts[::2] = [LINK.sub(rewrite, part) for part in parts[::2]]
    return "".join(parts), linked


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files and the repository's instead of those of docs_dir, which is part of the repository."""
    found = [file for file in files if file.src_dir != config.docs_dir]
    pages = sorted(name for name in sources() if name.endswith(".md"))
    linked = set().union(*(rewritten(page, (ROOT / page).read_text())[1] for page in pages))
    found += [File.generated(config, page, abs_src_path=str(ROOT / page)) for page in pages]
    shown = linked | {name for directory in linked - sources() for name in files_of(directory)}
    for path in sorted(shown - set(pages)):
        if path.endswith(ASSETS) and path in sources():
            found.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        elif page_of(path) not in (path, *pages):
            content = source(path) if path in sources() else listing(path)
            found.append(File.generated(config, page_of(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    found.append(File.generated(config, "site.css", abs_src_path=str(ROOT / "docs/site/site.css")))
    return Files(found)


def listing(directory: str) -> str:
    rows = [f"- [{name}]({name})" for name in (posixpath.relpath(path, directory) for path in files_of(directory))]
    return f"{NO_SEARCH}# {directory}\n\n" + "\n".join(rows) + "\n"


def source(path: str) -> str:
    text = (ROOT / path).read_text()
    language = LANGUAGES.get(Path(path).suffix, Path(path).suffix[1:] or "text")
    fence = "~" * 8
    return f"{NO_SEARCH}# {path}\n\n{fence} {language}\n{text}\n{fence}\n"


def with_lists(markdown: str) -> str:
    """The text with lists as Python-Markdown wants them: an item's further lines indented by four spaces, and a blank line
    above a list, and below an item of several paragraphs."""
    width = 0
    paragraphs = 0
    lines = []
    for line in markdown.split("\n"):
        item = re.match(r"- |\d+\. ", line)
        if item:
            if lines and lines[-1] and (not width or paragraphs > 1):
                lines.append("")
            width, paragraphs = len(item[0]), 1
        elif not line:
            paragraphs += 1
        elif not line.startswith(" " * width):
            width = 0
        elif width:
            line = " " * (4 - width) + line
        lines.append(line)
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if re.match("docs/decisions/|CHANGELOG|.*FORMAT", page.file.src_uri):
        page.meta["search"] = {"boost": 0.3}  # history and bytes come after what a user looks for
    text, _ = rewritten(page.file.src_uri, markdown)
    parts = FENCED.split(text)
    parts[::2] = [with_lists(part) for part in parts[::2]]
    return re.sub(r"^( *```\w+) .*$", r"\1", "".join(parts), flags=re.MULTILINE)  # one word names a language
