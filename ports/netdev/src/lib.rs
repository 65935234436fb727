//! Network interfaces of the host as ports: a TAP device, or any existing Ethernet interface.
//!
//! * [`TapPort`] is the user-space end of a TAP device: it receives frames that the host sends
//!   there.
//! * [`PacketPort`] uses an `AF_PACKET` socket on an existing interface: a physical one, a veth
//!   device, or the host's side of a virtual machine's TAP device. It receives incoming frames, to
//!   any address, and sends outgoing ones. It does not receive frames that the host itself sends
//!   there, and the host still receives the frames too: the interface of a box in the middle should
//!   have no address.
//!
//! Lifecycle: a port is opened in the network namespace of the calling thread, and is up while the
//! interface is up and has a carrier. No state of the interface ends a port: while the interface is
//! set down, has no carrier, or is deleted, the port is down, counts the frames that it drops and
//! reports the reason ([`longhaul_port::Port::last_disconnect`]). It is up again when the interface
//! is, even if that is a new one of the same name. A port stays with a renamed interface until that
//! is deleted, even if another one gets the old name. A port does not recreate a deleted TAP
//! device, but attaches to it if someone else does. The kernel reports changes; a port that never
//! sleeps checks once per millisecond.
//!
//! Privileges: opening needs CAP_NET_RAW for a [`PacketPort`] (and CAP_NET_ADMIN to turn receive
//! merging off, and for buffers beyond the system's limits), CAP_NET_ADMIN for a [`TapPort`] (none
//! for a device that was created for this user with the wanted MTU and state). Later operations
//! need none, but without them
//! * a [`TapPort`] does not attach to a recreated device, unless it was created for this user;
//! * a [`PacketPort`] leaves receive merging off when it is dropped (`ethtool -K IF gro on` turns
//!   it on), and does not turn it off on a recreated interface; merged frames are still split.
//!
//! Offloads: senders on the same host, and virtual machines, leave checksums open and hand over
//! frames of up to 64 KiB for a device to split; receiving interfaces merge frames. A port restores
//! the frames that a cable would carry. For a TAP device without offered offloads
//! ([`TapConfig::offloads`]) the kernel does that. An `AF_PACKET` socket receives such frames with
//! a description (`PACKET_VNET_HDR`), and the port completes and splits them: TCP over IPv4 and
//! IPv6, UDP (`UDP_SEGMENT`), in VLANs and in VXLAN, Geneve, GRE and IP tunnels; the checksums of
//! these and of SCTP. Frames that it does not understand are dropped and counted
//! ([`NetdevCounters::rx_not_splittable`]), and so are frames
//! longer than 64 KiB ("BIG TCP"). VLAN tags, which the kernel strips, are restored.
//!
//! Limits: `AF_PACKET` sends no frame longer than the interface's MTU with an Ethernet header and
//! one 802.1Q tag, so frames with two tags, or with an 802.1ad tag, need an MTU that is 4 bytes
//! larger. Ports do not carry FCS or pause frames. A full send buffer makes the port wait; a full
//! queue behind it loses frames ([`NetdevCounters::tx_queue_full`]).
//!
//! Trust: lengths and offsets that accompany frames are checked, since a virtual machine may have
//! forged them.
//!
//! Frames move by `recvmmsg` and `sendmmsg` instead of rings in shared memory: on a veth pair a
//! ring of 8 KiB slots took 10 % less time per frame, but one with 64 KiB slots, which unsplit
//! frames need, nearly twice as much. System calls go through `libc`: rustix supports neither
//! packet sockets nor interface requests.
//!
//! Several cores: [`PacketPort::open_queues`] opens several ports on one interface, each with its
//! own sockets, and the kernel gives each frame to exactly one of them ([`FrameSubset`]). Sockets
//! use a filter and not a fanout group, because a socket in such a group cannot move to a recreated
//! interface, cannot join while the interface is down before Linux 6.13, and has a position in the
//! group that depends on the order of joining. The kernel runs one filter of thirty instructions
//! per socket and frame.
//!
//! Floods: a port that serves by class ([`PacketConfig::by_class`]) has a socket and a receive
//! buffer for each of three classes, sorted by similar filters, so that frames of unknown traffic
//! do not displace those of known flows.
//!
//! A TAP device may be in another network namespace than its port: [`TapPort::create`] there,
//! [`TapPort::adopt`] here, and [`interface::bring_up`] gives the interface its addresses.
//!
//! Deliberately absent: routes, neighbours, and watching a namespace from outside.

mod batch;
mod bpf;
mod checksum;
mod class;
mod config;
mod counters;
mod error;
mod filter;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod interface;
mod layers;
mod merge;
pub mod offloads;
mod packet;
mod part;
mod receiver;
pub mod repair;
mod request;
mod segment;
mod sender;
pub mod setting;
mod socket;
mod tap;
pub mod watch;

pub use class::PreferredQps;
pub use config::{PacketConfig, TapConfig};
pub use counters::NetdevCounters;
pub use error::NetdevError;
pub use filter::Wanted;
pub use packet::PacketPort;
pub use part::FrameSubset;
pub use tap::TapPort;

#[cfg(test)]
mod tests;
