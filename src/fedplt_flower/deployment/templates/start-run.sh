{% extends "script.sh" %}
{% set about = "Starts the run of ../run.toml, or continues it, and shows its log until it ends." %}
{% block body %}
# Exit code: 0 if the run is finished, 1 if it failed, 3 if it may go on without being watched.
if [ "$#" -gt 0 ]; then
    echo "usage: start-run.sh (it continues a run that has begun in $HERE/run)" >&2
    exit 2
fi
exec python3 -P -m fedplt_flower.deployment.start_run "$HERE"
{% endblock %}
