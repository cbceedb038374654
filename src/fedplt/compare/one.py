"""One run of a comparison, in a process of its own: ``python -m fedplt.compare.one FOLDER PARENT``.

The configuration is in ``FOLDER.toml``. A run that was begun is continued, a finished one left.
When the process PARENT is gone, the run saves itself and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from fedplt.errors import FedpltError
from fedplt.federation.engine import Interrupted
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import job_from_config
from fedplt.federation.load_config import load_config
from fedplt.simulator.run import prepare_resume, run_job
from fedplt.simulator.worker import PARENT_CHECK_SECONDS


def run_one(path: Path) -> None:
    config = load_config(path.with_name(path.name + ".toml"))
    if (path / "config.toml").is_file():
        job, _ = prepare_resume(RunFolder.open(path), lambda _: config)
        run_job(job, path, resume=True)
    else:
        run_job(job_from_config(config), path)


def end_with(parent: int) -> None:
    """Wait until the parent is gone, then end this process as SIGTERM does: saved."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    threading.Thread(target=end_with, args=(int(sys.argv[2]),), daemon=True).start()
    try:
        run_one(Path(sys.argv[1]))
    except FedpltError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except Interrupted:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
