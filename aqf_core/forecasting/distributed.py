"""Several processes started by torchrun: who is who, and how they agree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

__all__ = ["agree", "is_distributed", "process_group", "rank", "wait", "world_size"]


def is_distributed() -> bool:
    """Whether several processes train together.

    Example:
        >>> is_distributed()
        False
    """
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Number of this process; the first one writes results."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if is_distributed() else 1


def agree(value: float) -> float:
    """The value of the first process, in all of them."""
    if not is_distributed():
        return value
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def wait() -> None:
    """Wait for all processes."""
    if is_distributed():
        dist.barrier()


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes of torchrun for the time of the block; without torchrun do nothing.

    Example:
        >>> with process_group():
        ...     print(world_size())
        1
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
