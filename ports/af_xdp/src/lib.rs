//! An Ethernet interface of the host as a port, by AF_XDP sockets: frames go between the driver and
//! this process' memory without the kernel's network stack.
//!
//! [`XdpPort::open`] attaches an XDP program to an interface that exists, opens a socket for each
//! of its queues over one shared piece of memory, and has the program hand the sockets what is
//! wanted ([`Wanted`]); everything else stays with the kernel.
//!
//! * **Mode**: the program runs in the driver ([`Mode::Native`]) or, where the driver has no XDP,
//!   in the kernel behind it ([`Mode::Generic`]). In native mode sockets share buffers with the
//!   device where the driver can (zero copy), else the kernel copies each frame once.
//! * **Long frames**: buffers are pages of 4 KiB, of which the kernel leaves 3840 bytes for a
//!   received frame. Longer ones come in several, for which it takes Linux 6.6, and are copied into
//!   one piece. Neither unaligned chunks nor huge pages help: the kernel takes no chunk that is
//!   longer than a page.
//! * **Order**: received frames keep the order of their queue; all are sent by the port's first
//!   queue, so that they keep theirs.
//! * **Several threads**: [`XdpPort::open_queues`] gives each a port with its part of the queues.
//!   They have the program in common, and nothing that is touched when a frame passes.
//!
//! Lifecycle: opened in the network namespace of the calling thread; up when the interface is up
//! and has a carrier. No state of the interface ends a port: set down, without carrier or deleted,
//! it is down, counts what it drops and says why; it is up again when the interface is. On one that
//! was made anew it attaches again, as far as its rights go. The program goes with the port and
//! with the process, however that ends: it is held by a link (`bpf_link`), not by the interface.
//!
//! What a cable carries: senders on the same machine leave checksums open and hand over long TCP
//! segments, and XDP is not told so. [`longhaul_netdev::repair`] finds and repairs both, outside of
//! tunnels. What cannot be repaired is turned off: merging (LRO; GRO too in generic mode, which
//! comes behind it) and the taking off of VLAN tags. A veth device whose other end keeps tags aside
//! hands XDP frames without them: `ethtool -K PEER txvlan off` there.
//!
//! Privileges: opening takes CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; nothing after that takes any,
//! but attaching to an interface that was made anew.
//!
//! Trust: the kernel has the other end of the rings. Every index, address and length of its is
//! checked; when one is wrong the port lets go of the sockets, says so, and attaches again.
//!
//! Instructions are put together here and loaded by bpf(2): the program is forty of them, for which
//! no compiler is worth having. System calls go through `libc`, as rustix has no sockets of this
//! kind.
//!
//! Deliberately absent: sending by several queues of a port, busy polling in the kernel, time
//! stamps, hardware offload of the program.

mod attachment;
mod bpf;
mod config;
mod counters;
mod error;
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
