"""Lists what makes pages hard to read: sentences of more than 30 words, pages of more than 1,500, and words for which the
project has others. It forbids nothing; tests/run.sh says how many there are.

    python3 tests/docs/prose.py [--count] [PAGE ...]      every page where none is named
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_WORDS_OF_A_SENTENCE = 30
MOST_WORDS_OF_A_PAGE = 1500
# Decisions are history, formats are reference, generated pages have the code's own words.
LEFT_OUT = re.compile(
    r"docs/decisions/|FORMAT\.md$|docs/reference/(options|python|threats)\.md|docs/metrics\.md|CHANGELOG\.md"
)
WORDS = {
    r"^who\b|\b(whom|whoever|somebody|nobody|anybody|everybody)\b": "name the actor",
    r"\bportions?\b": "write batch",
    r"\bsheets?\b": "shard description",
    r"\b(mend(s|ed)?|made anew)\b": "repair, rebuild",
    r"\bvouch": "verify",
    r"\bat hand\b": "available",
}


def pages() -> "list[str]":
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split() if not LEFT_OUT.search(name)]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def sentences(text: str) -> "list[str]":
    """Of paragraphs, items and cells of tables; each link as its text, each piece of code as one word."""
    found: "list[str]" = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.)\s?)", without_code(text)):
        if block.lstrip().startswith("#"):
            continue
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            plain = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", " ".join(cell.split())))
            found += re.split(r"(?<=[.!?:;])\s+", plain)
    return found


def findings(name: str) -> "list[str]":
    text = (ROOT / name).read_text()
    words = len(without_code(text).split())
    found = [f"{name}: {words} words"] if words > MOST_WORDS_OF_A_PAGE else []
    for sentence in sentences(text):
        length = len(re.findall(r"\w[\w'-]*", sentence))
        if length > MOST_WORDS_OF_A_SENTENCE:
            found.append(f"{name}: {length} words: {sentence[:120]}")
        found += [f"{name}: {use}: {sentence[:120]}" for word, use in WORDS.items() if re.search(word, sentence, re.I)]
    return found


def main() -> None:
    words = sys.argv[1:]
    count = "--count" in words
    found = [one for name in [word for word in words if word != "--count"] or pages() for one in findings(name)]
    if count:
        print(
            f"{len(found)} sentences, pages and words of the documents are hard to read: tests/docs/prose.py lists them"
        )
    else:
        print("\n".join(found))


if __name__ == "__main__":
    main()
