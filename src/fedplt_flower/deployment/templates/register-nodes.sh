{% extends "script.sh" %}
{% set about = "Registers the nodes' public keys: only these nodes may join. May be run again." %}
{% block body %}
failed=0
for key in keys/*.pub; do
    name="$(basename "$key" .pub)"
    if output="$(flwr supernode register "$key" {{ connection }} --name "$name" 2>&1)"; then
        echo "$name: registered"
    else
        case "$output" in
        *"already in use"*) echo "$name: was registered before" ;;
        *) echo "$name: $output" >&2; failed=1 ;;
        esac
    fi
done
exit "$failed"
{% endblock %}
