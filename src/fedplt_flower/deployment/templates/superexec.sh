{% extends "script.sh" %}
{% set about = "Runs the server app, apart from the SuperLink: a run survives its crash." %}
{% block body %}
# Flower's SuperExec, with tokens that other accounts cannot read. The server app ends with it, and
# saves the run.
exec python3 -P -m fedplt_flower.deployment.superexec \
    server --runtime-api-address {{ address.superlink }} --root-certificates "$HERE/ca.crt" \
    --superexec-auth-secret-file "$HERE/superexec.secret"
{% endblock %}
