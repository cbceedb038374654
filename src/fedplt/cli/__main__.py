"""``python -m fedplt.cli``."""

from fedplt.cli import main

main()
