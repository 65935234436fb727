#!/bin/busybox sh
# The guest's first process: mounts, modules, then a shell that reads what the host sends, agent.sh first.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts /jobs /tmp /run
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /jobs
mount -t tmpfs tmpfs /run
ip link set lo up
while read -r module; do
    modprobe "$module" || echo "init: no module $module" >/dev/kmsg
done </modules
[ -d /sys/kernel/config ] && mount -t configfs configfs /sys/kernel/config
# Debian's shell and not busybox's, which prefers its own applets to what lies in PATH.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C
ulimit -l unlimited
ulimit -n 65536
while [ ! -c /dev/vport0p1 ] || [ ! -c /dev/vport0p2 ]; do sleep 0.02; done
# A port is there a moment before it can be opened. The one that the host writes to comes last: what it had sent would be lost with a
# port that is closed again.
until command exec 3<>/dev/vport0p2; do sleep 0.02; done 2>/dev/null
until command exec 4<>/dev/vport0p1; do sleep 0.02; done 2>/dev/null
if [ -e /first ]; then
    # Another program becomes the first process, beside that shell.
    /bin/dash -s <&4 >&4 4<&- 2>/dev/console &
    exec "$(cat /first)" 3<&- 4<&-
fi
exec /bin/dash -s <&4 >&4 4<&- 2>/dev/console
