"""`python -m harness` is the command line."""

from harness.cli.app import main

if __name__ == "__main__":
    main()
