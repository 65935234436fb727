//! What a port is configured with.

use crate::error::DpdkError;
use std::fmt::Display;
use std::num::NonZeroUsize;

/// Two VLAN tags and the Ethernet header, in bytes: what a frame is longer than its MTU.
pub(crate) const AROUND_MTU: usize = 14 + 2 * 4;

/// How a device is to choose the receive queue of a frame, where there are several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// By the two IP addresses, the same for both directions of a flow: two devices with as many
    /// queues choose the same one for it. A device that cannot is refused.
    #[default]
    ByAddresses,
    /// However the device does it by itself, as net_ring, net_null, net_tap, net_af_packet and
    /// net_af_xdp do. The two directions of a flow may come by different queues.
    ByDevice,
}

/// Configuration of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkConfig {
    /// The device and its arguments, as DPDK takes them: `0000:3b:00.0`, `net_memif0,role=client`.
    pub devargs: String,
    /// The MTU that the flows behind this port need, in bytes: a device that cannot take it is
    /// refused. `None`: as much as the device takes, up to [`DpdkConfig::MTU_DEFAULT`].
    pub mtu: Option<u16>,
    /// Receive queues of each port, over which the device spreads flows: 1 to 64. More than one
    /// helps where a device limits what one queue takes.
    pub rx_queues: u16,
    /// How the device spreads frames over all receive queues of all its ports.
    pub spread: Spread,
    /// Frames that each queue holds at the device, each way. A device may take less.
    pub queue_frames: u16,
    /// Received frames of each port that others may keep where they lie, at most. Of those beyond
    /// it copies are kept, so that the device never runs out of buffers for what is kept. 0: copies
    /// of all.
    pub lent_frames: u16,
    /// Bytes of frame that one buffer holds, at least 256. A longer frame lies in several, where
    /// the device can do that; else buffers are as long as the longest frame. Each port has
    /// `(rx_queues + 1) * queue_frames + lent_frames + 2048` buffers. The default of 4352 carries a
    /// 4096-byte RDMA payload with all its headers in one.
    pub buffer_bytes: usize,
}

impl DpdkConfig {
    /// The MTU that a port takes unless told otherwise, in bytes: jumbo frames.
    pub const MTU_DEFAULT: u16 = 9216;

    /// The most receive queues of a port.
    pub const RX_QUEUES_MAX: u16 = 64;

    /// The most ports of a device.
    pub const PORTS_MAX: u16 = 64;

    /// The largest MTU that can be asked for, in bytes: frames of 16 KiB.
    pub const MTU_MAX: u16 = (16 << 10) - AROUND_MTU as u16;

    /// The defaults: jumbo frames, one queue of 1024 frames each way, 4096 frames lent, buffers of
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

    /// The device without its arguments.
    #[must_use]
    pub fn device(&self) -> &str {
        self.devargs.split(',').next().unwrap_or_default()
    }
}
