//! The [`Port`] trait and what a port says about itself.

use std::sync::Arc;
use std::time::Duration;

use longhaul_lease::Lease;

use crate::{Descriptors, PortCounters, PortError, forward_port};

/// Shortest frame a port carries, in bytes: an Ethernet header without payload.
pub const FRAME_BYTES_MIN: usize = 14;

/// Whether frames can reach the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// No peer. Frames given to the port are counted as drops, as a real NIC does.
    Down,
    /// A peer is attached.
    Up,
}

/// What a port can do. Fixed for the life of the port; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCapabilities {
    /// Which kind of port this is, such as `memif` or `loopback`.
    pub kind: &'static str,
    /// The name the configuration gave to this port.
    pub name: Arc<str>,
    /// Longest frame in bytes, from destination MAC to last byte without FCS.
    pub frame_bytes_max: usize,
    /// The most frames that can be built between two flushes when the peer keeps up.
    pub transmit_slots: usize,
    /// Whether [`Port::arm`] gives real wake-ups. A port without them has to be polled.
    pub interrupts: bool,
}

/// Refuses a frame length that a port with this maximum cannot carry.
///
/// # Errors
/// [`PortError::FrameTooLong`] or [`PortError::FrameTooShort`].
#[inline]
pub fn check_length(len: usize, frame_bytes_max: usize) -> Result<(), PortError> {
    if len > frame_bytes_max {
        return Err(PortError::FrameTooLong { len, max: frame_bytes_max });
    }
    if len < FRAME_BYTES_MIN {
        return Err(PortError::FrameTooShort { len, min: FRAME_BYTES_MIN });
    }
    Ok(())
}

/// A frame that a port hands out.
#[derive(Clone, Copy, Debug)]
pub enum Received<'a> {
    /// Bytes that are there during the call alone, and that a hostile peer may change.
    Passing(&'a [u8]),
    /// As [`Received::Passing`], and how long ago the frame arrived at the host, by the kernel's
    /// stamp.
    Stamped(&'a [u8], Duration),
    /// Bytes that stay, unchanged, as long as anybody keeps a clone.
    Lent(&'a Lease),
}

impl<'a> Received<'a> {
    /// The bytes.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Received::Passing(bytes) | Received::Stamped(bytes, _) => bytes,
            Received::Lent(lease) => lease.bytes(),
        }
    }
}

/// A place where Ethernet frames (destination MAC to last byte, no FCS) enter and leave.
///
/// It knows no protocol. No method blocks, and none allocates per frame.
pub trait Port: Send {
    /// Hands up to `max` received frames to `each` and returns how many there were.
    ///
    /// Each frame is one contiguous slice, valid only during that call; the buffers go back to the
    /// peer before this returns. `Ok(0)` when nothing waits. The bytes may be shared with a hostile
    /// peer, who can change them at any time: a reader copies what it decides on before it looks.
    ///
    /// # Errors
    /// [`PortError::PeerViolation`] when the peer broke the rules of the shared memory. The link is
    /// down by then; the port stays usable and comes up again with the next peer.
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError>;

    /// As [`Port::receive`], and frames that the port can lend, which a reader may keep, come as
    /// that.
    ///
    /// A port lends what nobody changes any more. When too many are kept, it hands out frames that
    /// pass.
    ///
    /// # Errors
    /// As [`Port::receive`].
    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        self.receive(max, &mut |bytes| each(Received::Passing(bytes)))
    }

    /// Free transmit slots right now, each for a frame of up to `capabilities().frame_bytes_max`.
    fn transmit_room(&mut self) -> usize;

    /// Builds one frame of exactly `len` bytes in place.
    ///
    /// `fill` runs exactly once when this returns `Ok(true)`, and not at all when it returns
    /// `Ok(false)` or refuses the length. The slice that it gets holds stale bytes and must be
    /// written completely. `Ok(false)`: no slot is free, the
    /// caller keeps the frame. While the link is down the frame is taken, dropped and counted.
    ///
    /// # Errors
    /// [`PortError::FrameTooLong`] and [`PortError::FrameTooShort`] when `len` is out of range;
    /// [`PortError::PeerViolation`] as in [`Port::receive`].
    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError>;

    /// As [`Port::transmit`], of a frame whose bytes are at hand in these pieces.
    ///
    /// # Errors
    /// As [`Port::transmit`].
    fn transmit_pieces(&mut self, pieces: &[&[u8]; 3]) -> Result<bool, PortError> {
        self.transmit(pieces.iter().map(|piece| piece.len()).sum(), &mut |out| join(pieces, out))
    }

    /// As [`Port::transmit`], of a frame that some port lends: by reference where this port can,
    /// else by copy.
    ///
    /// # Errors
    /// As [`Port::transmit`].
    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        let bytes = lease.bytes();
        self.transmit(bytes.len(), &mut |out| out.copy_from_slice(bytes))
    }

    /// Publishes the frames built since the last flush, and wakes the peer when it asked for that.
    ///
    /// # Errors
    /// [`PortError::Io`] when waking the peer failed; the frames are published all the same.
    fn flush(&mut self) -> Result<(), PortError>;

    /// Asks for a wake-up on the next frame. `Ok(true)`: frames already wait, do not sleep.
    ///
    /// # Errors
    /// [`PortError::PeerViolation`] as in [`Port::receive`].
    fn arm(&mut self) -> Result<bool, PortError>;

    /// Back to polling mode.
    fn disarm(&mut self);

    /// Descriptors to poll for readability while armed. They may change with each
    /// [`Port::service`].
    fn descriptors(&self) -> Descriptors;

    /// Works off whatever made a descriptor readable: connections, handshakes, disconnects,
    /// interrupt counters. Returns the link state after that. Cheap enough to call in every turn of
    /// a polling loop. It consumes wake-ups: afterwards receive until nothing waits, and `arm`
    /// again, before sleeping.
    ///
    /// # Errors
    /// [`PortError::PeerViolation`] and [`PortError::Io`]; the port stays usable after either.
    fn service(&mut self) -> Result<LinkState, PortError>;

    /// The link state as of the last call that could change it.
    fn link_state(&self) -> LinkState;

    /// Why the last connection to a peer, or the last attempt at one, ended; for messages to
    /// people. `None` while the link is up, and for ports that do not know.
    fn last_disconnect(&self) -> Option<&str> {
        None
    }

    /// What this port can do.
    fn capabilities(&self) -> PortCapabilities;

    /// Free-running counters since the port was made; they survive reconnects.
    fn counters(&self) -> PortCounters;
}

impl<P: Port + ?Sized> Port for Box<P> {
    forward_port!(
        |self| **self => receive, receive_lent, transmit_room, transmit, transmit_pieces,
        transmit_lent, flush
    );
    forward_port!(|self| **self => arm, disarm, descriptors, service, link_state, last_disconnect);
    forward_port!(|self| **self => capabilities, counters);
}

impl<P: Port + ?Sized> Port for &mut P {
    forward_port!(
        |self| **self => receive, receive_lent, transmit_room, transmit, transmit_pieces,
        transmit_lent, flush
    );
    forward_port!(|self| **self => arm, disarm, descriptors, service, link_state, last_disconnect);
    forward_port!(|self| **self => capabilities, counters);
}

/// Copies `pieces` to `out`, one behind another.
///
/// # Panics
/// When `out` is not as long as all of them.
pub fn join(pieces: &[&[u8]; 3], out: &mut [u8]) {
    let [first, second, third] = pieces;
    let (first_out, rest) = out.split_at_mut(first.len());
    let (second_out, third_out) = rest.split_at_mut(second.len());
    first_out.copy_from_slice(first);
    second_out.copy_from_slice(second);
    third_out.copy_from_slice(third);
}
