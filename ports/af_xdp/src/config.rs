//! Configuration of a port.

use std::fmt::Display;

use crate::error::XdpError;

/// Frames over all queues, and minimum per queue.
const RECEIVE_FRAMES_DEFAULT: u32 = 8192;
const RECEIVE_FRAMES_LEAST: u32 = 1024;

/// Where the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// In the driver if possible, otherwise behind it.
    #[default]
    Auto,
    /// Only in the driver.
    Native,
    /// In the kernel behind the driver: works with every driver, and costs about as much as an
    /// `AF_PACKET` socket.
    Generic,
}

/// Whether the device shares buffers with this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copying {
    /// Shares buffers if the driver can.
    #[default]
    Auto,
    /// The kernel copies each frame, even if the driver could share buffers: for faulty drivers.
    Copy,
    /// Fails unless the driver can share buffers.
    ZeroCopy,
}

/// Frames that the program redirects to the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wanted {
    /// Every frame, as through a cable. The kernel receives none of them.
    #[default]
    Everything,
    /// Only RoCEv2, including connection management, and datagrams between two boxes: UDP to ports
    /// 4791 and 4797, over IPv4 or IPv6, with up to two VLAN tags. The kernel receives all other
    /// frames, so that an interface in a bridge still forwards ARP, neighbour discovery and other
    /// traffic. IPv4 fragments and IPv6 packets with extension headers count as other frames.
    Roce,
}

impl Wanted {
    /// UDP ports of RoCEv2 (IBTA) and of the transport between boxes.
    pub(crate) const UDP_PORTS: [u16; 2] = [4791, 4797];
}

/// How to open a [`crate::XdpPort`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdpConfig {
    /// The port's name in messages and metrics.
    pub name: String,
    /// The Ethernet interface, which must exist. At most 15 bytes.
    pub interface: String,
    /// Where the program runs.
    pub mode: Mode,
    /// Whether buffers are shared with the device. Generic mode always copies.
    pub copying: Copying,
    /// Frames to receive.
    pub wanted: Wanted,
    /// Number of the interface's queues to receive from, starting at the first, 1 to
    /// [`XdpConfig::QUEUES_MAX`]. `None`: all, up to that maximum. The kernel receives frames of
    /// other queues.
    pub queues: Option<u16>,
    /// Frames that each queue buffers for the port, a power of two from 64 to 16384: enough for the
    /// time until the port's thread is scheduled. Each takes 4 KiB of locked memory; a frame of
    /// more than 3840 bytes takes several. `None`: 8192 over all queues, 32 MiB, and at least 1024
    /// each.
    pub receive_frames: Option<u32>,
    /// Buffers of 4 KiB for frames to be sent, a power of two from 64 to 16384: the maximum number
    /// of frames on their way to the wire. The default of 1024 is 4 MiB.
    pub transmit_frames: u32,
    /// Receives frames to all addresses, which a box in the middle of a cable needs.
    pub promiscuous: bool,
    /// Maximum frame in bytes, 64 to 65553, Ethernet header and VLAN tags included. Without frames
    /// over several buffers (before Linux 6.6) it is at most 3840.
    pub frame_bytes_max: usize,
}

impl XdpConfig {
    /// Maximum number of queues.
    pub const QUEUES_MAX: u16 = 64;

    /// Defaults for this interface; the port is named after it.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            name: interface.to_owned(),
            interface: interface.to_owned(),
            mode: Mode::Auto,
            copying: Copying::Auto,
            wanted: Wanted::Everything,
            queues: None,
            receive_frames: None,
            transmit_frames: 1024,
            promiscuous: true,
            frame_bytes_max: 9018,
        }
    }

    /// Frames that each of `queues` queues buffers.
    pub(crate) fn frames_of_each(&self, queues: u16) -> u32 {
        let share = RECEIVE_FRAMES_DEFAULT / u32::from(queues.max(1));
        self.receive_frames.unwrap_or_else(|| (1 << share.ilog2()).max(RECEIVE_FRAMES_LEAST))
    }

    pub(crate) fn validate(&self) -> Result<(), XdpError> {
        let refuse = |field, value: &dyn Display, range| {
            Err(XdpError::Config { field, value: value.to_string(), range })
        };
        if let Some(queues) = self.queues
            && !(1..=Self::QUEUES_MAX).contains(&queues)
        {
            return refuse("queues", &queues, "1 to 64");
        }
        let receive_frames = self.frames_of_each(1);
        for (field, frames) in
            [("receive_frames", receive_frames), ("transmit_frames", self.transmit_frames)]
        {
            if !frames.is_power_of_two() || !(64..=16384).contains(&frames) {
                return refuse(field, &frames, "a power of two from 64 to 16384");
            }
        }
        if !(64..=65553).contains(&self.frame_bytes_max) {
            return refuse("frame_bytes_max", &self.frame_bytes_max, "64 to 65553");
        }
        if self.mode == Mode::Generic && self.copying == Copying::ZeroCopy {
            return refuse(
                "copying",
                &"zero copy",
                "a copy in generic mode: take native mode, or leave it out",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_share_the_default_of_frames() {
        let config = XdpConfig::new("eth1");
        let shares = [1, 2, 3, 8, 9, 64].map(|queues| config.frames_of_each(queues));
        assert_eq!(shares, [8192, 4096, 2048, 1024, 1024, 1024]);
        let config = XdpConfig { receive_frames: Some(64), ..config };
        assert_eq!(config.frames_of_each(3), 64);
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        type Change = fn(&mut XdpConfig);
        let refusals: [(Change, &str); 6] = [
            (|config| config.queues = Some(0), "queues is 0"),
            (|config| config.queues = Some(65), "queues is 65"),
            (|config| config.receive_frames = Some(100), "receive_frames is 100"),
            (|config| config.transmit_frames = 32, "transmit_frames is 32"),
            (|config| config.frame_bytes_max = 63, "frame_bytes_max is 63"),
            (
                |config| (config.mode, config.copying) = (Mode::Generic, Copying::ZeroCopy),
                "copying is zero copy",
            ),
        ];
        for (change, part) in refusals {
            let mut config = XdpConfig::new("eth1");
            assert!(config.validate().is_ok());
            change(&mut config);
            let refusal = config.validate().unwrap_err().to_string();
            assert!(refusal.contains(part), "{refusal}");
        }
    }
}
