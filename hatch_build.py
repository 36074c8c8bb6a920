"""Makes the links of the README absolute: package indexes show it outside of the repository.

Pages of the documentation become pages of the site. Other files are those of the version's tag.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(
    r'(?P<before>\]\(|(?:href|src|srcset)=")(?P<path>[\w./-]+)(?P<anchor>#[\w-]*)?(?=[)" ])'
)


class AbsoluteLinks(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        text = (root / "README.md").read_text(encoding="utf-8")
        text = absolute(text, root, metadata["urls"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, root: Path, urls: dict[str, str], version: str) -> str:
    """The text with addresses in place of the paths of files in `root`."""
    repository = urls["Repository"]

    def address(link: re.Match[str]) -> str:
        path = link["path"].rstrip("/")
        if not (root / path).exists():
            return link[0]
        page = re.fullmatch(r"docs/(.*)\.md", path)
        if page:
            target = f"{urls['Documentation']}{page[1]}.html"
        elif path.endswith((".png", ".svg")):
            target = f"{repository}/raw/v{version}/{path}"
        else:
            target = f"{repository}/blob/v{version}/{path}"
        return f"{link['before']}{target}{link['anchor'] or ''}"

    return LINK.sub(address, text)
