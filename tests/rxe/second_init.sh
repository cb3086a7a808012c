#!/bin/bash
# Second part of the first process, on the host's files: makes the Soft-RoCE device, runs the job, turns off.
exec > /dev/ttyS0 2>&1
. /run/job/job.sh
mkdir -p /dev/shm /dev/pts /lib/modules
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
release=$(uname -r)
[ -e "/lib/modules/$release" ] || ln -s "$MODULES/$release" "/lib/modules/$release"
hostname rxe
ulimit -l unlimited
ip link set lo up
modprobe -a crc32_generic rdma_rxe ib_uverbs dummy
ip link add net0 type dummy
ip address add 192.0.2.1/24 dev net0
ip link set net0 mtu 4200 up
rdma link add rxe0 type rxe netdev net0
echo "device ready: $(cut -d' ' -f1 /proc/uptime) s"
cd /run/job
command > /run/job/output.txt 2>&1 < /dev/null
status=$?
echo "command ended with $status: $(cut -d' ' -f1 /proc/uptime) s"
echo $status > /run/job/status
sync
echo o > /proc/sysrq-trigger
while true; do :; done
