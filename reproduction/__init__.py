"""The paper's experiments, claims and theory, run again: ``python -m reproduction``.

Not in the wheel: it uses fedplt as any user does. ``catalog`` lists the experiments, ``runner``
runs them, ``recorded`` is what ``results/`` holds, ``claims`` judges, ``pages`` writes.
"""
