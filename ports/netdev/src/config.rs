//! Configurations of ports.

use crate::error::NetdevError;
use crate::filter::Wanted;
use crate::part::FrameSubset;
use std::num::NonZeroUsize;

/// Fits an MTU of 9000 bytes, an Ethernet header and a VLAN tag.
const FRAME_BYTES_DEFAULT: usize = 9018;

/// How to open a [`crate::TapPort`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapConfig {
    /// The port's name in messages and metrics.
    pub name: String,
    /// The TAP device, at most 15 bytes. An existing, unused one is attached; otherwise one is
    /// created, and deleted with the port.
    pub interface: String,
    /// MTU to set, in bytes without Ethernet header, 68 to 65521. `None`: unchanged (1500 for a new
    /// device).
    pub mtu: Option<u32>,
    /// Maximum frame in bytes, 64 to 65553, Ethernet header and VLAN tags included. The default of
    /// 9018 fits an MTU of up to 9000.
    pub frame_bytes_max: usize,
    /// Sets the device up. Otherwise its state is left unchanged.
    pub up: bool,
    /// Offers the kernel checksums and segmentation (TSO), which the port then does, and merges
    /// consecutive TCP segments to the kernel until the next flush: fewer calls for a stream. Off:
    /// the kernel does both, and gets each frame.
    pub offloads: bool,
}

impl TapConfig {
    /// The defaults for this device; the port is named after it.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            name: interface.to_owned(),
            interface: interface.to_owned(),
            mtu: None,
            frame_bytes_max: FRAME_BYTES_DEFAULT,
            up: true,
            offloads: false,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), NetdevError> {
        check_interface(&self.interface)?;
        check_frame_bytes_max(self.frame_bytes_max)
    }
}

/// How to open a [`crate::PacketPort`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketConfig {
    /// The port's name in messages and metrics.
    pub name: String,
    /// The Ethernet interface, which must exist. At most 15 bytes.
    pub interface: String,
    /// Receives frames to all addresses, which a box in the middle of a cable needs. Off: frames to
    /// the interface, broadcasts, and groups that the host has joined.
    pub promiscuous: bool,
    /// Maximum frame in bytes, 64 to 65553, Ethernet header and VLAN tags included. The default of
    /// 9018 fits an MTU of up to 9000.
    pub frame_bytes_max: usize,
    /// Maximum number of frames that wait for the kernel, 1 to 4096. Each takes `frame_bytes_max`
    /// bytes.
    pub transmit_slots: usize,
    /// Requested size of the receive buffer, in bytes. The default of 16 MiB holds about two
    /// thousand frames of 4 KiB; longer bursts lose frames. Without the privilege to exceed it, the
    /// system's limit (`net.core.rmem_max`) applies.
    pub receive_buffer_bytes: usize,
    /// Requested size of the send buffer, in bytes; a frame takes at least 768. The default of 256
    /// KiB, which the kernel doubles, holds fewer frames than the usual device queue of 1000
    /// packets, so the port waits instead of losing frames.
    pub send_buffer_bytes: usize,
    /// Passes frames to the device without its queueing discipline (`PACKET_QDISC_BYPASS`). Lower
    /// cost per frame, but a full device loses frames instead of making the port wait. No effect on
    /// devices without a queue (veth, bridge, VLAN).
    pub bypass_queue: bool,
    /// Leaves the interface's receive merging (GRO, LRO) unchanged. Merged frames are split again,
    /// but their IPv4 identifications are lost. Off: merging is turned off, and restored when the
    /// port is dropped; both need CAP_NET_ADMIN.
    pub keep_merging: bool,
    /// Makes the kernel stamp frames on arrival, so that their age is known. Slightly higher cost
    /// per frame, on all interfaces of the host.
    pub stamps: bool,
    /// Serves known RoCEv2 flows first, then other RoCEv2, then everything else, with a receive
    /// buffer for each: see [`crate::PacketPort::prefer`]. Frames of different classes may be
    /// reordered. Excludes `wanted`.
    pub by_class: bool,
    /// Receives only these frames; the kernel drops all others without copying them. `None`: every
    /// frame.
    pub wanted: Option<Wanted>,
    /// Receives this part of the frames; other ports on the same interface receive the others. Must
    /// be [`FrameSubset::All`] if `wanted` is given.
    pub part: FrameSubset,
}

impl PacketConfig {
    /// Defaults for this interface; the port is named after it.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            name: interface.to_owned(),
            interface: interface.to_owned(),
            promiscuous: true,
            frame_bytes_max: FRAME_BYTES_DEFAULT,
            transmit_slots: 256,
            receive_buffer_bytes: 16 << 20,
            send_buffer_bytes: 256 << 10,
            bypass_queue: false,
            keep_merging: false,
            stamps: false,
            by_class: false,
            wanted: None,
            part: FrameSubset::All,
        }
    }

    /// Configurations of `queues` ports on the interface, one per core. Each host pair's frames, in
    /// both directions, arrive at one of them. Overrides `part` if there are several.
    #[must_use]
    pub fn of_queues(&self, queues: NonZeroUsize) -> Vec<Self> {
        if queues == NonZeroUsize::MIN {
            return vec![self.clone()];
        }
        let of = u32::try_from(queues.get()).unwrap_or(u32::MAX);
        let queue = |index| Self { part: FrameSubset::OfPairs { index, of }, ..self.clone() };
        (0..of).map(queue).collect()
    }

    pub(crate) fn validate(&self) -> Result<(), NetdevError> {
        check_interface(&self.interface)?;
        check_frame_bytes_max(self.frame_bytes_max)?;
        if !(1..=4096).contains(&self.transmit_slots) {
            return refuse(
                "transmit_slots",
                format!("{} is not in 1 to 4096", self.transmit_slots),
            );
        }
        if self.by_class && self.wanted.is_some() {
            return refuse("by_class", "a socket has one filter".to_owned());
        }
        match self.part {
            FrameSubset::All => {}
            _ if self.wanted.is_some() => {
                return refuse("part", "a socket has one filter".to_owned());
            }
            FrameSubset::OfPairs { index, of } if index >= of => {
                return refuse("part", format!("{index} is not among {of}"));
            }
            _ => {}
        }
        for (field, bytes) in [
            ("send_buffer_bytes", self.send_buffer_bytes),
            ("receive_buffer_bytes", self.receive_buffer_bytes),
        ] {
            // The kernel doubles it as an int.
            if !(1..=(1 << 30) - 1).contains(&bytes) {
                return refuse(field, format!("{bytes} is not in 1 to 2^30 - 1"));
            }
        }
        Ok(())
    }
}

fn refuse(field: &'static str, detail: String) -> Result<(), NetdevError> {
    Err(NetdevError::Config { field, detail })
}

fn check_frame_bytes_max(bytes: usize) -> Result<(), NetdevError> {
    if (64..=65553).contains(&bytes) {
        return Ok(());
    }
    refuse("frame_bytes_max", format!("{bytes} is not in 64 to 65553"))
}

/// The kernel's check, which also expands `%` to a free number and would then name another device
/// each time.
pub(crate) fn check_interface(name: &str) -> Result<(), NetdevError> {
    let refuse = |detail| Err(NetdevError::BadName { interface: name.to_owned(), detail });
    match name {
        "" => refuse("it is empty"),
        "." | ".." => refuse("it is a directory"),
        _ if name.len() >= libc::IFNAMSIZ => refuse("it is longer than 15 bytes"),
        _ if name
            .bytes()
            .any(|byte| matches!(byte, b'/' | b':' | b'%' | 0) || byte.is_ascii_whitespace()) =>
        {
            refuse("it has a slash, a colon, a percent sign, a zero byte or white space in it")
        }
        _ => Ok(()),
    }
}
