//! Configuration of a port.

use crate::error::DpdkError;
use std::fmt::Display;
use std::num::NonZeroUsize;

/// Bytes by which a frame exceeds its MTU: two VLAN tags and the Ethernet header.
pub(crate) const AROUND_MTU: usize = 14 + 2 * 4;

/// How a device selects the receive queue of a frame, if it has several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// By the pair of IP addresses, alike for both directions of a flow: two devices with the same
    /// number of queues select the same one. A device that cannot do so is refused.
    #[default]
    ByAddresses,
    /// By the device's default, as net_ring, net_null, net_tap, net_af_packet and net_af_xdp do.
    /// The two directions of a flow may arrive by different queues.
    ByDevice,
}

/// Configuration of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkConfig {
    /// The device and its arguments, in DPDK's notation: `0000:3b:00.0`, `net_memif0,role=client`.
    pub devargs: String,
    /// MTU that the flows behind this port need, in bytes: a device that does not support it is
    /// refused. `None`: the device's maximum, up to [`DpdkConfig::MTU_DEFAULT`].
    pub mtu: Option<u16>,
    /// Receive queues per port, over which the device spreads flows: 1 to 64. Several help if a
    /// device limits the rate of one queue.
    pub rx_queues: u16,
    /// How the device spreads frames over the receive queues of all its ports.
    pub spread: Spread,
    /// Frames that each queue of the device holds, per direction. A device may reduce it.
    pub queue_frames: u16,
    /// Maximum number of received frames per port that readers may keep in place. Further ones are
    /// copied, so that kept frames never exhaust the device's buffers. 0: copy all.
    pub lent_frames: u16,
    /// Frame bytes per buffer, at least 256. A longer frame spans several, if the device supports
    /// that; otherwise buffers are as long as the longest frame. Each port has `(rx_queues + 1) *
    /// queue_frames + lent_frames + 2048` buffers. The default of 4352 fits a 4096-byte RDMA
    /// payload with all its headers.
    pub buffer_bytes: usize,
}

impl DpdkConfig {
    /// Default maximum of a port's MTU, in bytes: jumbo frames.
    pub const MTU_DEFAULT: u16 = 9216;

    /// Maximum number of receive queues per port.
    pub const RX_QUEUES_MAX: u16 = 64;

    /// Maximum number of ports per device.
    pub const PORTS_MAX: u16 = 64;

    /// Maximum MTU that can be requested, in bytes: frames of 16 KiB.
    pub const MTU_MAX: u16 = (16 << 10) - AROUND_MTU as u16;

    /// Defaults: jumbo frames, one queue of 1024 frames per direction, 4096 frames lent, buffers of
    /// 4352 bytes.
    #[must_use]
    pub fn new(devargs: &str) -> Self {
        Self {
            devargs: devargs.to_owned(),
            mtu: None,
            rx_queues: 1,
            spread: Spread::default(),
            queue_frames: 1024,
            lent_frames: 4096,
            buffer_bytes: 4352,
        }
    }

    pub(crate) fn validate(&self, ports: NonZeroUsize) -> Result<(), DpdkError> {
        let refuse = |field, value: &dyn Display, range| {
            Err(DpdkError::Config { field, value: value.to_string(), range })
        };
        if self.device().is_empty() || self.devargs.contains('\0') {
            return refuse(
                "the device",
                &self.devargs,
                "a device, with its arguments behind commas",
            );
        }
        if let Some(mtu) = self.mtu
            && !(68..=Self::MTU_MAX).contains(&mtu)
        {
            return refuse("the MTU", &mtu, "68 to 16362 bytes");
        }
        if !(1..=Self::RX_QUEUES_MAX).contains(&self.rx_queues) {
            return refuse("the number of receive queues", &self.rx_queues, "1 to 64");
        }
        if ports.get() > Self::PORTS_MAX.into() {
            return refuse("the number of queues", &ports, "1 to 64");
        }
        if !(64..=32768).contains(&self.queue_frames) {
            return refuse("the length of queues", &self.queue_frames, "64 to 32768 frames");
        }
        if !(256..=16 << 10).contains(&self.buffer_bytes) {
            return refuse("the size of buffers", &self.buffer_bytes, "256 to 16384 bytes");
        }
        Ok(())
    }

    /// Name of the device without arguments.
    #[must_use]
    pub fn device(&self) -> &str {
        self.devargs.split(',').next().unwrap_or_default()
    }
}
