//! What a port is opened with.

use crate::error::NetdevError;
use crate::filter::Wanted;
use crate::part::FrameSubset;

/// Room for a 9000-byte MTU, an Ethernet header and a VLAN tag.
const FRAME_BYTES_DEFAULT: usize = 9018;

/// How to open a [`crate::TapPort`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TapConfig {
    /// The port's name in messages and metrics.
    pub name: String,
    /// The TAP device: one that exists and that nobody uses is attached to, otherwise it is made,
    /// and goes away with the port. At most 15 bytes.
    pub interface: String,
    /// MTU to set, in bytes, Ethernet header not included, 68 to 65521. `None`: left as it is (1500
    /// when made).
    pub mtu: Option<u32>,
    /// Longest frame in bytes, 64 to 65553, Ethernet header and VLAN tags included. The default of
    /// 9018 is for an MTU of up to 9000.
    pub frame_bytes_max: usize,
    /// Sets the device up. When not, somebody else has to.
    pub up: bool,
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
    /// The Ethernet interface, which has to exist. At most 15 bytes.
    pub interface: String,
    /// Receives what is addressed to anybody, as a box in the middle of a cable has to. Off: what
    /// is addressed to the interface, to all, and to groups that the host is in.
    pub promiscuous: bool,
    /// Longest frame in bytes, 64 to 65553, Ethernet header and VLAN tags included. The default of
    /// 9018 is for an MTU of up to 9000.
    pub frame_bytes_max: usize,
    /// Frames that wait for the kernel at most, 1 to 4096. Each takes `frame_bytes_max` bytes.
    pub transmit_slots: usize,
    /// Size asked for the receive buffer, in bytes. The default of 16 MiB holds about two thousand
    /// frames of 4 KiB; bursts beyond it are lost. Without the right to exceed it, the system's
    /// limit (`net.core.rmem_max`) holds.
    pub receive_buffer_bytes: usize,
    /// Size asked for the send buffer, in bytes, of which a frame takes 768 or more. The default of
    /// 256 KiB, which the kernel doubles, holds less than the usual device queue of 1000 packets,
    /// so that the port waits rather than loses frames.
    pub send_buffer_bytes: usize,
    /// Hands frames to the device without its queueing discipline (`PACKET_QDISC_BYPASS`). Less
    /// work for each frame, but a full device loses frames instead of making the port wait. Of no
    /// use on devices without a queue (veth, bridge, VLAN).
    pub bypass_queue: bool,
    /// Leaves the interface's receive merging (GRO, LRO) as it is. Merged frames are split again,
    /// but the IPv4 identification of every frame is not known any more. Off: turned off, and put
    /// back when the port is dropped; both take a privilege.
    pub keep_merging: bool,
    /// Has the kernel stamp frames as they arrive, so that their age is known when they are handed
    /// out. A little more work for each frame, on all interfaces of the host.
    pub stamps: bool,
    /// Serves known RoCEv2 flows first, then other RoCEv2, then everything else, each with a
    /// receive buffer of its own: see [`crate::PacketPort::prefer`]. Frames of different classes
    /// may overtake each other. Not together with `wanted`.
    pub by_class: bool,
    /// Receives this alone; the kernel drops everything else uncopied. `None`: every frame.
    pub wanted: Option<Wanted>,
    /// Receives this part of the frames; other ports on the same interface have the others.
    /// Together with `wanted` it has to be [`FrameSubset::All`].
    pub part: FrameSubset,
}

impl PacketConfig {
    /// The defaults for this interface; the port is named after it.
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
            // The kernel doubles it, in an int.
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

/// As the kernel checks it; it also takes `%` for a number of its choice, which would be another
/// device each time.
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
