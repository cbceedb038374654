{% extends "script.sh" %}
{% set about = "The SuperLink: nodes and the server app talk to each other through it." %}
{% block body %}
# Whoever reaches this port can start code on this machine: keep it on loopback (README.md).
exec flower-superlink --host "${FEDPLT_BIND:-{{ local }}}" --port {{ address.superlink_port }} \
    --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile "$HERE/server.key" \
    --enable-supernode-auth --isolation process --database "$HERE/state.db" \
    --superexec-auth-secret-file "$HERE/superexec.secret" --disable-runtime-dependency-installation
{% endblock %}
