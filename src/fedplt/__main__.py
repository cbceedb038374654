"""``python -m fedplt``."""

from fedplt.cli import main

if __name__ == "__main__":
    main()
