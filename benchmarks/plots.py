"""Draw the pictures of this folder's README from `results/*.json`, and write the numbers of that page and of docs/.

    python benchmarks/plots.py

What stands between ``<!-- numbers: NAME -->`` and ``<!-- end -->`` is made here, from the full runs that are recorded:
in this folder's README a paragraph for each result of the script NAME, in the project's and in docs/ what `front_page`
makes of them. A test checks that all are what the files say. Nothing is measured.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import front_page  # noqa: E402 - of this checkout, wherever the script is called from
from benchmarks.answers import ANSWERS, OF_LEARNING, OF_LIBRARIES  # noqa: E402
from benchmarks.documents import Result, results_of  # noqa: E402
from benchmarks.quotes import NONE_YET  # noqa: E402
from shapedispatch.cli import tables  # noqa: E402

MARKED = re.compile(r"(<!-- numbers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
ALL = {**ANSWERS, **OF_LIBRARIES, **OF_LEARNING}


def main() -> None:
    """Draw, and fill in."""
    for script in ALL:
        for result in results_of(script):
            for path in drawn(script, result):
                print(f"drawn: {path}")
    for page, numbers in PAGES.items():
        page.write_text(filled(page.read_text("utf-8"), numbers), "utf-8")


def drawn(script: str, result: Result) -> list[Path]:
    """Draw a result's pictures beside it; where they lie."""
    pictures = {result.picture(name): figure for name, figure in ALL[script].draw(result).items()}
    for path, figure in pictures.items():
        tables.save(figure, path)
    return list(pictures)


def filled(text: str, numbers: Callable[[str], str]) -> str:
    """A page with the numbers that the results hold; ``numbers`` gives what stands under a name."""
    return MARKED.sub(lambda match: f"{match[1]}{numbers(match[2])}{match[3]}", text)


def paragraphs(script: str, folder: Path | None = None) -> str:
    """What a script's results say, with their pictures; a sentence where there is none."""
    found = [
        f"{result.heading}\n\n{ALL[script].tell(result)}\n\n{links(script, result)}".rstrip()
        for result in results_of(script, folder)
    ]
    return "\n\n".join(found) + "\n" if found else NONE_YET


def links(script: str, result: Result) -> str:
    """The pictures of a result, if they were drawn; those of another whose name goes on are not among them."""
    folder, begins = result.path.parent, f"{result.path.stem}-*"
    others = tuple(f"{other.stem}-" for other in folder.glob(f"{begins}.json"))
    found = sorted(one for one in folder.glob(f"{begins}.svg") if not one.stem.startswith(others))
    names = [(one.stem.removeprefix(result.path.stem + "-").replace("-", " "), one.name) for one in found]
    return "\n".join(f"![{script}: {name}](results/{file})" for name, file in names)


PAGES: dict[Path, Callable[[str], str]] = {
    HERE / "README.md": paragraphs,
    **dict.fromkeys((HERE.parent / "README.md", *sorted((HERE.parent / "docs").rglob("*.md"))), front_page.part),
}
"""Each page and what fills it in."""


if __name__ == "__main__":
    main()
