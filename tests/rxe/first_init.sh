#!/bin/busybox sh
# First process of the virtual machine: makes a file system of the host's (read-only) and of memory, and goes there.
stop() { echo "first_init: $*"; /bin/busybox poweroff -f; }
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r name; do $b insmod "/modules/$name" || echo "first_init: insmod $name failed"; done < /modules/order
way=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o "ro,cache=loose,$way" host /host || stop "the host's files aren't there"
$b mount -t tmpfs -o size=70% tmpfs /memory
$b mkdir /memory/upper /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root
for name in proc sys dev; do $b mount --move "/$name" "/root/$name"; done
$b mkdir -p /root/run/job
$b mount -t 9p -o "rw,cache=none,$way" job /root/run/job || stop "the job's folder isn't there"
exec $b switch_root /root /bin/bash /run/job/second_init.sh
