#!/usr/bin/env bash
# One host's part of a node over several: `group.sh prefill|decode`, in the leader and in the others alike.
# LeaderWorkerSet sets LWS_LEADER_ADDRESS and LWS_GROUP_SIZE; WORKER_INDEX is 0 in the leader.
set -euo pipefail

JOIN_S=${JOIN_S:-1800} # a new machine may have to be brought up and pull its image first

case "${1:-}" in
    prefill | decode) ;;
    *) echo "group: prefill or decode, not '${1:-}'" >&2; exit 2 ;;
esac

# The leader's name is known as soon as it has an address; from then on vLLM itself waits for the others.
until getent hosts "$LWS_LEADER_ADDRESS" >/dev/null; do
    [ "$SECONDS" -lt "$JOIN_S" ] || { echo "group: no leader at $LWS_LEADER_ADDRESS within $JOIN_S s" >&2; exit 1; }
    sleep 1
done

# In this process's place: SIGTERM must reach it.
exec baton "$1" --config /etc/baton/baton.yaml --advertise-host "$POD_IP" \
    --nnodes "$LWS_GROUP_SIZE" --node-rank "$WORKER_INDEX" --master-addr "$LWS_LEADER_ADDRESS"
