"""Command line options that several tools share."""

from __future__ import annotations

import argparse
import os

from mmengine.config import DictAction

__all__ = ["add_config_options", "add_launcher_options", "set_local_rank"]


def add_config_options(parser: argparse.ArgumentParser, example: str) -> None:
    """Where the data are and which entries of the config to override.

    Args:
        parser: Of the tool.
        example: An entry worth overriding, such as "train_dataloader.batch_size=4".
    """
    parser.add_argument(
        "--data-root", help="folder that holds VOCdevkit, coco or demo (default: $AQF_DATA or data)"
    )
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=DictAction,
        help=f"override config entries, e.g. {example}",
    )


def add_launcher_options(parser: argparse.ArgumentParser) -> None:
    """Who starts the processes; after parsing, `set_local_rank` tells them apart."""
    parser.add_argument(
        "--launcher",
        choices=["none", "pytorch", "slurm", "mpi"],
        default="none",
        help="job launcher",
    )
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)


def set_local_rank(args: argparse.Namespace) -> None:
    """Hand the rank given on the command line to mmengine, which reads the environment."""
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
