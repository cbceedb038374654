#!/bin/sh
# {{ about }}
set -eu
umask 077
cd "$(dirname "$0")"
HERE="$(pwd -P)"
# The Python environment with fedplt and Flower; without it, programs are looked up on PATH.
[ -n "${FEDPLT_ENVIRONMENT:-}" ] || FEDPLT_ENVIRONMENT={{ environment | sh }}
if [ -d "$FEDPLT_ENVIRONMENT/bin" ]; then PATH="$FEDPLT_ENVIRONMENT/bin:$PATH"; fi
export PATH FLWR_HOME="$HERE/flwr-home"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"
if ! command -v flwr > /dev/null; then
    echo "Flower is not installed: pip install 'fedplt[flower]', and set" \
        "FEDPLT_ENVIRONMENT to the folder of that Python environment." >&2
    exit 127
fi
{% block body %}{% endblock %}
