"""How fast the simulator is, against others on the same job: ``make bench``.

Every contestant is a script that runs one round on request (``contestants/``). All are started
first; then rounds are asked for in turn, one contestant at a time, several passes over. What counts
is the minimum per contestant and the ratios between them.
"""
