"""A hook of MkDocs: pyproject.toml has the addresses of the site and of the repository."""

import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

URLS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["urls"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.site_url = URLS["Documentation"]
    config.repo_url = URLS["Repository"]
    config.repo_name = URLS["Repository"].removeprefix("https://github.com/")
    return config
