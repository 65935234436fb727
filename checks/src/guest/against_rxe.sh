# rxe0 talks to itself; rxe1 and rxe2 talk to each other over a veth pair. veth3 and veth4 are bare, for packet sockets;
# veth5 and veth6 join two network namespaces, for UDP sockets: port 4791 of this one is rxe's.
set -e
ip link add own0 type dummy
ip link add veth1 type veth peer name veth2
for pair in own0=10.9.0.1 veth1=10.9.1.1 veth2=10.9.1.2; do
    device=${pair%=*}
    ip link set "$device" mtu 4500 up
    # Both ends of the pair are this kernel's own addresses: a frame from one to the other must still go out.
    echo 1 >"/proc/sys/net/ipv4/conf/$device/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/$device/rp_filter"
    ip address add "${pair#*=}/24" dev "$device"
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip neighbour replace 10.9.1.2 lladdr "$(cat /sys/class/net/veth2/address)" dev veth1
ip neighbour replace 10.9.1.1 lladdr "$(cat /sys/class/net/veth1/address)" dev veth2
rdma link add rxe0 type rxe netdev own0
rdma link add rxe1 type rxe netdev veth1
rdma link add rxe2 type rxe netdev veth2
ip link add veth3 mtu 4500 type veth peer name veth4 mtu 4500
ip link set veth3 addrgenmode none up
ip link set veth4 addrgenmode none up
ip link add veth5 mtu 4500 type veth peer name veth6 mtu 4500
for end in near=veth5=10.9.3.1 far=veth6=10.9.3.2; do
    namespace=${end%%=*} device=${end#*=}
    ip netns add "$namespace"
    ip link set "${device%=*}" netns "$namespace"
    ip -n "$namespace" address add "${device#*=}/24" dev "${device%=*}"
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set "${device%=*}" up
done
