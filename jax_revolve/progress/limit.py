"""A bar for work on the host that has a limit of seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from jax_revolve.progress.meters import tqdm_bars

Show: TypeAlias = Callable[[float, str], None]
"""Shows the share that is done, from 0 to 1, and what is done now."""

FORMAT = "{desc} {percentage:3.0f}%|{bar}| {elapsed}"


@contextmanager
def limit_bar() -> Iterator[Show]:
    """A bar of tqdm on the standard error stream; nothing is shown where tqdm is not installed."""
    try:
        bars = tqdm_bars()
    except ImportError:
        yield lambda share, now: None
        return
    with bars(total=100, bar_format=FORMAT) as bar:

        def show(share: float, now: str) -> None:
            bar.update(100 * share - bar.n)
            if bar.desc != now:
                bar.set_description_str(now)

        yield show
