#!/bin/sh
# Makes the passwords that compose.yaml hands to its services, in deploy/secrets; what is there already stays.
#
# The services run as users of their own, and compose mounts the files with the modes they have here: so the files can be
# read by all, and the folder they lie in by nobody but its owner.
set -eu
folder=$(dirname "$0")/../secrets
umask 022
mkdir -p "$folder"
chmod 0700 "$folder"
echo '*' >"$folder/.gitignore"
for name in postgres_password indexer_password dashboard_password grafana_password page_token; do
    [ -s "$folder/$name" ] || head -c 24 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n' >"$folder/$name"
done
[ -s "$folder/letta-indexer.toml" ] || cat >"$folder/letta-indexer.toml" <<TOML
database_url = "postgresql://letta_indexer:$(cat "$folder/indexer_password")@postgres/letta"
TOML
