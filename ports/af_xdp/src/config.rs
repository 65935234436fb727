//! What a port is opened with.

use std::fmt::Display;

use crate::error::XdpError;

/// Over all queues, and what each gets at least.
const RECEIVE_FRAMES_DEFAULT: u32 = 8192;
const RECEIVE_FRAMES_LEAST: u32 = 1024;

/// Where the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// In the driver where it can, else behind it.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel, behind the driver: works with every driver, and costs about what an
    /// `AF_PACKET` socket does.
    Generic,
}

/// Whether the device and this process share buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copying {
    /// They do where the driver can.
    #[default]
    Auto,
    /// The kernel copies each frame, also where the driver could share: for drivers that are at
    /// fault there.
    Copy,
    /// They do, or the port is refused.
    ZeroCopy,
}

/// What the program hands to the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wanted {
    /// Every frame, as a wire has to. The kernel sees none of them.
    #[default]
    Everything,
    /// RoCEv2 alone, connection management included, and the datagrams between two boxes: UDP to
    /// ports 4791 and 4797, over IPv4 or IPv6, with up to two VLAN tags. All else goes the kernel's
    /// way: an interface in a bridge has ARP, neighbour discovery and other traffic forwarded by
    /// that. An IPv4 fragment and an IPv6 packet with extension headers are such too.
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
    /// The Ethernet interface, which has to exist. At most 15 bytes.
    pub interface: String,
    /// Where the program runs.
    pub mode: Mode,
    /// Whether buffers are shared with the device. Generic mode always copies.
    pub copying: Copying,
    /// What is received.
    pub wanted: Wanted,
    /// The interface's first queues that are received from, 1 to [`XdpConfig::QUEUES_MAX`]. `None`:
    /// all, and no more than that. What comes in by another goes to the kernel.
    pub queues: Option<u16>,
    /// Frames that each queue holds for the port, a power of two from 64 to 16384: as many as come
    /// while the port's thread waits for a processor. Each takes 4 KiB of memory that is never
    /// swapped; a frame of more than 3840 bytes takes several. `None`: 8192 over all queues, 32
    /// MiB, and 1024 for each at least.
    pub receive_frames: Option<u32>,
    /// Buffers of 4 KiB for frames to be sent, a power of two from 64 to 16384: as many as are on
    /// their way to the wire. The default of 1024 is 4 MiB.
    pub transmit_frames: u32,
    /// Receives what is addressed to anybody, as a box in the middle of a cable has to.
    pub promiscuous: bool,
    /// Longest frame in bytes, 64 to 65553, Ethernet header and VLAN tags included. Without frames
    /// over several buffers (before Linux 6.6) it is 3840 at most.
    pub frame_bytes_max: usize,
}

impl XdpConfig {
    /// The most queues.
    pub const QUEUES_MAX: u16 = 64;

    /// The defaults for this interface; the port is named after it.
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

    /// Frames that each of so many queues holds.
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
