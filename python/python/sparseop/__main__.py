"""The program `sparseop`, as of the package of Rust: `python -m sparseop --help`."""

import sys


def main():
    """Runs the program with the arguments of the process, and exits with its code."""
    from ._sparseop import main as run

    sys.exit(run(["sparseop", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
