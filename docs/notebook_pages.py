"""A hook of MkDocs that makes pages of the notebooks, with the outputs that they store.

nbconvert writes them as Markdown. All else is MkDocs's own: links are checked, code looks like that
of the other pages. `docs/notebook_outputs.py` makes the outputs.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert.exporters import MarkdownExporter

FOLDER = Path(__file__).parents[1] / "notebooks"
SOURCES = "sources"
"""The folder of the notebooks themselves, beside their pages."""

TEMPLATE = """{% extends "markdown/index.md.j2" %}
{% block stream %}{{ printed(output.text) }}{% endblock %}
{% block data_text scoped %}{{ printed(output.data["text/plain"]) }}{% endblock %}
{% block data_png %}{% set file = output.metadata.filenames["image/png"] %}
[![{{ cell.metadata.alt }}]({{ file }})]({{ file }})
{% endblock %}
{% macro printed(text) %}

````text
{{ text.rstrip() }}
````

{% endmacro %}
"""
"""What is printed is a block of its own; a picture has its cell's alternative text, and a link to
itself, for small screens."""


class NotebookPage(File):
    """A page whose source is a notebook, to which the others link by its own name."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds a page for each notebook, its pictures and the notebook itself."""
    exporter = MarkdownExporter(raw_template=TEMPLATE)
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        names = {"unique_key": notebook.stem, "output_files_dir": ""}
        text, resources = exporter.from_filename(str(notebook), resources=names)
        title, _, rest = text.lstrip().partition("\n")
        text = f"{title}\n\n[This page as a notebook]({SOURCES}/{notebook.name})\n{rest}"
        files.append(NotebookPage.generated(config, f"notebooks/{notebook.name}", content=text))
        source = f"notebooks/{SOURCES}/{notebook.name}"
        files.append(File.generated(config, source, abs_src_path=str(notebook)))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In the repository the notebooks are beside the folder of the pages, not in it."""
    if isinstance(page.file, NotebookPage):
        return markdown.replace("](../docs/", "](../")
    return markdown.replace("../notebooks/", "notebooks/")
