"""``python -m reproduction``."""

from fedplt.cli import main
from reproduction.command import app

main(app)
