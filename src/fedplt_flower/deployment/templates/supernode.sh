{% extends "script.sh" %}
{% block body %}
PORT="${FEDPLT_NODE_PORT:-{{ port }}}"
# Starts the tasks of this node, and authenticates with a secret: no other account of this machine
# gets them. It ends with the SuperNode below, and is started again if it ends before.
(
    while kill -0 $$ 2> /dev/null; do
        python3 -P -m fedplt_flower.deployment.superexec \
            node --runtime-api-address "{{ local }}:$PORT" --parent-pid $$ \
            --root-certificates "$HERE/runtime-ca.crt" \
            --superexec-auth-secret-file "$HERE/superexec.secret" || :
        sleep 1
    done
) &
# The port is for processes of this node alone, on loopback.
exec flower-supernode --superlink "${FEDPLT_SUPERLINK:-{{ address.public }}}" \
    --root-certificates ca.crt --auth-supernode-private-key "$HERE/node.key" \
    --host {{ local }} --port "$PORT" --isolation process \
    --ssl-certfile runtime.pem --ssl-keyfile "$HERE/runtime.key" --ssl-ca-certfile runtime-ca.crt \
    --superexec-auth-secret-file "$HERE/superexec.secret" \
    --node-config "fedplt-node='$HERE/node.toml'"
{% endblock %}
