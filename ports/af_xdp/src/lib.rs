//! An Ethernet interface of the host as a port, through AF_XDP sockets: frames move between the
//! driver and this process' memory, past the kernel's network stack.
//!
//! [`XdpPort::open`] attaches an XDP program to an existing interface, opens a socket for each of
//! its queues over one shared memory area, and makes the program redirect the wanted frames
//! ([`Wanted`]) to the sockets; the kernel receives all others.
//!
//! * **Mode**: the program runs in the driver ([`Mode::Native`]) or, if the driver lacks XDP, in
//!   the kernel behind it ([`Mode::Generic`]). In native mode sockets share buffers with the device
//!   if the driver can (zero copy); otherwise the kernel copies each frame once.
//! * **Long frames**: buffers are pages of 4 KiB, of which the kernel leaves 3840 bytes for a
//!   received frame. Longer frames span several buffers, which needs Linux 6.6, and are copied into
//!   one. Neither unaligned chunks nor huge pages help: the kernel accepts no chunk longer than a
//!   page.
//! * **Order**: received frames keep the order of their queue; all frames are sent by the port's
//!   first queue, which keeps their order.
//! * **Several threads**: [`XdpPort::open_queues`] gives each thread a port with its share of the
//!   queues. The ports share the program, but no state that is accessed per frame.
//!
//! Lifecycle: a port is opened in the network namespace of the calling thread, and is up while the
//! interface is up and has a carrier. No state of the interface ends a port: while the interface is
//! set down, has no carrier or is deleted, the port is down, counts the frames that it drops and
//! reports the reason; it is up again when the interface is. It reattaches to a recreated
//! interface, if privileged. The program is detached with the port, or when the process ends in any
//! way: a link (`bpf_link`) holds it, not the interface.
//!
//! Offloads: senders on the same machine leave checksums open and hand over long TCP segments, and
//! XDP gets no description of them. [`longhaul_netdev::repair`] detects and repairs both, outside
//! of tunnels. Offloads that cannot be repaired are turned off: merging (LRO, and in generic mode
//! GRO, which runs before the program) and stripping of VLAN tags. A veth device whose peer keeps
//! tags in metadata gives XDP frames without them: run `ethtool -K PEER txvlan off` there.
//!
//! Privileges: opening needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF. Later operations need none,
//! except reattaching to a recreated interface.
//!
//! Trust: the kernel holds the other end of the rings. Every index, address and length from it is
//! checked; if one is wrong, the port closes its sockets, reports the violation, and reattaches.
//!
//! The program has forty instructions, assembled here and loaded by bpf(2), which needs no
//! compiler. System calls go through `libc`, since rustix has no sockets of this kind.
//!
//! Deliberately absent: sending by several queues of a port, busy polling in the kernel,
//! timestamps, hardware offload of the program.

mod attachment;
mod bpf;
mod config;
mod counters;
mod error;
mod handover;
mod installed;
mod memory;
mod port;
mod program;
mod queue;
mod receiver;
mod ring;
mod sender;
mod socket;

#[cfg(test)]
mod tests;

pub use config::{Copying, Mode, Wanted, XdpConfig};
pub use counters::XdpCounters;
pub use error::XdpError;
pub use port::{Manner, XdpPort};
