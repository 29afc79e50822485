"""`python -m specserve`."""

from specserve.cli.app import main

if __name__ == "__main__":
    main()
