#!/usr/bin/env bash
# A node over several hosts: `group.sh prefill|decode` in the leader, `group.sh worker` in the others, and
# `group.sh outlive-leader` before a worker ends. LeaderWorkerSet sets LWS_LEADER_ADDRESS and LWS_GROUP_SIZE.
set -euo pipefail

PORT=6379
JOIN_S=${JOIN_S:-1800} # a new machine may have to be brought up and pull its image first
DRAIN_S=${DRAIN_S:-340}

hosts() {
    python3 -c 'import ray; ray.init(address="auto", log_to_driver=False); print(sum(n["Alive"] for n in ray.nodes()))'
}

lead() {
    ray start --head --port="$PORT" --node-ip-address="$POD_IP" --include-dashboard=false
    until [ "$(hosts)" -ge "$LWS_GROUP_SIZE" ]; do
        [ "$SECONDS" -lt "$JOIN_S" ] || { echo "group: not all $LWS_GROUP_SIZE hosts came within $JOIN_S s" >&2; exit 1; }
        sleep 1
    done
    exec baton "$1" --config /etc/baton/baton.yaml # in this process's place: SIGTERM must reach it
}

join() {
    until ray health-check --address "$LWS_LEADER_ADDRESS:$PORT" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$JOIN_S" ] || { echo "group: no leader at $LWS_LEADER_ADDRESS within $JOIN_S s" >&2; exit 1; }
        sleep 1
    done
    exec ray start --address="$LWS_LEADER_ADDRESS:$PORT" --node-ip-address="$POD_IP" --block
}

# All pods of a group are told to end at once, and the leader is to drain first.
outlive_leader() {
    while [ "$SECONDS" -lt "$DRAIN_S" ] && ray health-check --address "$LWS_LEADER_ADDRESS:$PORT" >/dev/null 2>&1; do
        sleep 1
    done
}

case "${1:-}" in
    prefill | decode) lead "$1" ;;
    worker) join ;;
    outlive-leader) outlive_leader ;;
    *) echo "group: prefill, decode, worker or outlive-leader, not '${1:-}'" >&2; exit 2 ;;
esac
