"""A progress bar, if one is wanted and there is something to draw it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(total: int, verbose: int) -> Iterator[Callable[[int, float], None] | None]:
    """Yield a function of (steps done, mean held-out loss), or None without `verbose`.

    Example:
        >>> with progress_bar(10, verbose=0) as show:
        ...     print(show)
        None
    """
    if not verbose:
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda done, loss: print(f"step {done} of {total}, held-out loss {loss:.4g}")
        return
    with tqdm(total=total, unit="step") as bar:

        def show(done: int, loss: float) -> None:
            bar.update(done - bar.n)
            bar.set_postfix(held_out=f"{loss:.4g}")

        yield show
