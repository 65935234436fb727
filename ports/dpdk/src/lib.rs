//! Ethernet frames through DPDK: any of its drivers, named by its device arguments, as a frame
//! port.
//!
//! Without the feature `libdpdk` this crate is empty. With it, building needs Debian's
//! `libdpdk-dev`, and running the packages of the drivers in use.
//!
//! * `eal::start` starts DPDK, once per process, before the first port;
//! * `DpdkPort::open` attaches and starts a device, such as `0000:3b:00.0` or
//!   `net_memif0,role=client,socket=/run/x`; dropping the port detaches it;
//! * `open_queues` creates several ports of one device, each with its own queues and buffers, for
//!   its own thread.
//!
//! Frames are handed out and built in DPDK's buffers: this crate copies only frames that span
//! several buffers. It lends other frames, up to a bound, and a lent frame of any DPDK port is sent
//! from its place. `DpdkPort::open` refuses every device that cannot work, with the command that
//! cures it; later, link changes, stalled queues and empty pools are only counted (`DpdkCounters`).
//!
//! One thread polls the receive queues of a port in turn. A flow stays in one queue, so its frames
//! stay in order. If a device has several ports, both directions of a flow map to the same one by
//! default, and to the same one at another device with as many queues. net_memif has one queue: its
//! peer decides the number of rings, and its driver uses the first one in place of missing ones.
//!
//! Trust: drivers of virtual devices run in this process. Their descriptions of buffers are
//! trusted, as by DPDK's own code.
//!
//! Deliberately absent: interrupts (a sleeping thread polls every 100 µs), timestamps (their unit
//! is the device's own, and no stable function of 22.11 converts them), checksums of sent frames
//! (frames contain theirs), lending of frames that span several buffers.
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
