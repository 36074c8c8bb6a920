"""Tables as text."""

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], words: int = 0) -> Iterator[str]:
    """The rows as lines. The first `words` columns are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(c.ljust(w) if i < words else c.rjust(w) for i, (c, w) in cells).rstrip()
