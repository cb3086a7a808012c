#!/usr/bin/env bash
# Start a docker daemon in FOLDER for tests/engines/test_compose.py, with a python:3.11-slim made from Debian's packages: no registry
# of images is asked. A minute of CPU. Needs root, and docker.io, docker-compose, debootstrap and iptables of Debian 12.
# usage: start_docker.sh FOLDER; then DOCKER_HOST=unix://FOLDER/docker.sock. To end it: start_docker.sh FOLDER stop
set -euo pipefail
mkdir -p "$1"
cd "$1"
folder=$PWD
export DOCKER_HOST="unix://$folder/docker.sock"
if [ "${2:-start}" = stop ]; then
  if [ -f pid ]; then # else what is there is another daemon's
    kill "$(cat pid)"
    for _ in $(seq 100); do [ -f pid ] || break; sleep 0.1; done
    ip link delete docker0 2> /dev/null || true
  fi
  rm -rf "$folder"
  exit
fi
forwarding=$(iptables -S FORWARD | head -n 1)
roots=(--data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid")
setsid dockerd "${roots[@]}" --host "$DOCKER_HOST" > log 2>&1 < /dev/null &
daemon=$!
for _ in $(seq 300); do
  docker version > /dev/null 2>&1 && break
  kill -0 $daemon 2> /dev/null || { tail -n 5 log; exit 1; }
  sleep 0.1
done
# The daemon has others' packets dropped on their way through this machine: also those between hosts that tests make.
iptables $forwarding
# The image's mirror, certificates and settings of pip are this machine's.
mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources | head -n 1)
packages=ca-certificates,python3,python3-venv,python3-pip,iproute2,procps
debootstrap --variant=minbase --include=$packages bookworm root "${mirror:-http://deb.debian.org/debian}" > debootstrap.log 2>&1 ||
  { tail -n 5 debootstrap.log; exit 1; }
cp -r /usr/local/share/ca-certificates/. root/usr/local/share/ca-certificates/
chroot root update-ca-certificates > /dev/null 2>&1
cp /etc/apt/sources.list.d/debian.sources root/etc/apt/sources.list.d/
: > root/etc/apt/sources.list
find /etc/apt/apt.conf.d -name '99*' -exec cp {} root/etc/apt/apt.conf.d/ \;
{
  echo '[global]'
  echo 'cert = /etc/ssl/certs/ca-certificates.crt'
  python3 -m pip config list 2> /dev/null |
    sed -n "s/^[^.]*\.\(index-url\|trusted-host\)='\(.*\)'$/\1 = \2/p" | grep -v file: | sort -u || true
} > root/etc/pip.conf
rm -f root/usr/lib/python3*/EXTERNALLY-MANAGED
ln -s /usr/bin/python3 root/usr/local/bin/python
rm -rf root/var/cache/apt/archives/*.deb root/var/lib/apt/lists/*
certificates='ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt'
tar -C root -c . | docker import --change "$certificates" --change 'CMD ["python3"]' - python:3.11-slim > /dev/null
rm -rf root
# What is built there must reach the registries of packages.
timeout 120 docker run --rm python:3.11-slim sh -c 'apt-get update && pip download --no-deps --dest /tmp tomli' > reach.log 2>&1 ||
  { echo "containers reach no packages:"; tail -n 5 reach.log; exit 1; }
