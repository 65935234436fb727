//! Ethernet frames through DPDK: any of its drivers, named by its device arguments, behind the one
//! contract of ports.
//!
//! Without the feature `libdpdk` this crate is empty. With it, it needs Debian's `libdpdk-dev` to
//! build, and to run the packages of the drivers in use.
//!
//! * `eal::start` starts DPDK, once in a process, before the first port;
//! * `DpdkPort::open` attaches a device, such as `0000:3b:00.0` or
//!   `net_memif0,role=client,socket=/run/x`, and starts it; it is given back when the port is
//!   dropped;
//! * `open_queues` makes as many ports of one device, each with queues and buffers of its own and
//!   for a thread of its own.
//!
//! Frames are handed out where they lie in DPDK's buffers, and built there: this crate copies only
//! frames that a driver spread over several buffers. Others are lent, up to a bound, and what is
//! lent by any port of DPDK's leaves from where it lies. Everything that makes a device useless is
//! refused by `DpdkPort::open` with the command that cures it; afterwards a link that comes and
//! goes, a queue that stands still and a pool that runs dry are counted (`DpdkCounters`) and
//! nothing more.
//!
//! Several receive queues of a port are looked at in turn by the one thread that drives it. A flow
//! stays in one queue, so that its frames stay in order. Of several ports of a device, unless told
//! otherwise, both directions of a flow belong to the same, as they do at another device with as
//! many queues. net_memif has one queue: its peer decides how many rings there are, and what is not
//! there its driver takes for the first.
//!
//! Trust: drivers of virtual devices run in this process. What they say of a buffer is believed as
//! DPDK's own code does.
//!
//! Deliberately absent: interrupts (a thread that sleeps looks every 100 µs), time stamps (their
//! unit is the device's own, and no stable function of 22.11 converts them), checksums of what is
//! sent (frames come with theirs), frames lent in several buffers.
#![cfg(feature = "libdpdk")]

mod config;
mod device;
pub mod eal;
mod error;
mod frames;
mod lent;
mod pci;
mod pool;
mod port;
mod rss;
mod shim;

#[cfg(test)]
mod tests;

pub use config::{DpdkConfig, Spread};
pub use error::DpdkError;
pub use port::{DpdkCounters, DpdkPort, open_queues};
