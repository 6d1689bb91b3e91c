"""`python reproduce.py run faia --profile smoke`: the paper's tables and figures, and grids of one's own."""

import utils.cli.installed  # noqa: F401  first of all
from experiments.cli import main

if __name__ == "__main__":
    main()
