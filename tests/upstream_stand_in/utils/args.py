"""Flags that models share."""

from argparse import ArgumentParser


def add_rehearsal_args(parser):
    group = parser.add_argument_group("rehearsal") if isinstance(parser, ArgumentParser) else parser
    group.add_argument("--buffer_size", type=int, required=True)
    group.add_argument("--minibatch_size", type=int)
