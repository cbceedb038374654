"""``python -m fedplt``."""

import sys

if not sys.flags.safe_path:
    # Python puts the current folder first; a jinja2.py there would be imported as the package.
    sys.path.append(sys.path.pop(0))

from fedplt.cli import main

if __name__ == "__main__":
    main()
