"""Datasets."""


def get_dataset(args):
    from datasets.seq_toy import SequentialToy

    return SequentialToy(args)
