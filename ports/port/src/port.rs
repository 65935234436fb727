//! The [`Port`] trait and its description types.

use std::sync::Arc;
use std::time::Duration;

use longhaul_lease::Lease;

use crate::{Descriptors, Handover, PortCounters, PortError, forward_port};

/// Minimum frame length of a port, in bytes: an Ethernet header without payload.
pub const FRAME_BYTES_MIN: usize = 14;

/// Whether frames can reach the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// No peer. The port drops and counts frames, like a NIC without a link.
    Down,
    /// A peer is attached.
    Up,
}

/// Properties of a port, fixed for its life; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCapabilities {
    /// Kind of the port, such as `memif` or `loopback`.
    pub kind: &'static str,
    /// Name of the port in the configuration.
    pub name: Arc<str>,
    /// Maximum frame length in bytes, from destination MAC to last byte without FCS.
    pub frame_bytes_max: usize,
    /// Maximum number of frames that can be built between two flushes if the peer keeps up.
    pub transmit_slots: usize,
    /// True if [`Port::arm`] causes wake-ups. Other ports must be polled.
    pub interrupts: bool,
}

/// Refuses a frame length that is out of range for a port with this maximum.
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
    /// Bytes that are valid only during the call, and that a hostile peer may change.
    Passing(&'a [u8]),
    /// As [`Received::Passing`], with the time since the frame's arrival at the host, from the
    /// kernel's timestamp.
    Stamped(&'a [u8], Duration),
    /// Bytes that stay valid and unchanged while a clone of the lease exists.
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
/// A port knows no protocol. No method blocks or allocates per frame.
pub trait Port: Send {
    /// Hands up to `max` received frames to `each` and returns their number.
    ///
    /// Each frame is one contiguous slice, valid only during that call; the buffers return to the
    /// peer before this method returns. Returns `Ok(0)` if no frame waits. A hostile peer may share
    /// the bytes and change them at any time, so a reader must copy bytes before it checks them.
    ///
    /// # Errors
    /// [`PortError::PeerViolation`] if the peer violated the protocol of the shared memory. The
    /// link is then down; the port stays usable and comes up again with the next peer.
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError>;

    /// As [`Port::receive`], except that frames that the port can lend come as [`Received::Lent`],
    /// which a reader may keep.
    ///
    /// A port lends only bytes that nobody changes any more. If too many are kept, it hands out
    /// passing frames.
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

    /// Number of free transmit slots, each for a frame of up to `capabilities().frame_bytes_max`.
    fn transmit_room(&mut self) -> usize;

    /// Builds one frame of exactly `len` bytes in place.
    ///
    /// `fill` runs exactly once if this returns `Ok(true)`, and not at all if it returns
    /// `Ok(false)` or an error about the length. Its slice holds stale bytes and must be
    /// overwritten completely. `Ok(false)` means that no slot is free; the caller keeps the frame.
    /// While the link is down the port accepts, drops and counts frames.
    ///
    /// # Errors
    /// [`PortError::FrameTooLong`] and [`PortError::FrameTooShort`] if `len` is out of range;
    /// [`PortError::PeerViolation`] as in [`Port::receive`].
    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError>;

    /// As [`Port::transmit`], for a frame that consists of these pieces.
    ///
    /// # Errors
    /// As [`Port::transmit`].
    fn transmit_pieces(&mut self, pieces: &[&[u8]; 3]) -> Result<bool, PortError> {
        self.transmit(pieces.iter().map(|piece| piece.len()).sum(), &mut |out| join(pieces, out))
    }

    /// As [`Port::transmit`], for a frame that a port has lent: by reference if this port can,
    /// otherwise by copy.
    ///
    /// # Errors
    /// As [`Port::transmit`].
    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        let bytes = lease.bytes();
        self.transmit(bytes.len(), &mut |out| out.copy_from_slice(bytes))
    }

    /// Publishes the frames built since the last flush, and wakes the peer if it asked for that.
    ///
    /// # Errors
    /// [`PortError::Io`] if waking the peer failed; the frames are published nevertheless.
    fn flush(&mut self) -> Result<(), PortError>;

    /// Requests a wake-up at the next frame. `Ok(true)`: frames already wait, do not sleep.
    ///
    /// # Errors
    /// [`PortError::PeerViolation`] as in [`Port::receive`].
    fn arm(&mut self) -> Result<bool, PortError>;

    /// Returns to polling mode.
    fn disarm(&mut self);

    /// Descriptors to poll for readability while armed. They may change with each
    /// [`Port::service`].
    fn descriptors(&self) -> Descriptors;

    /// Handles the causes of readable descriptors: connections, handshakes, disconnects, interrupt
    /// counters. Returns the link state afterwards. Cheap enough for every turn of a polling loop.
    /// It consumes wake-ups: before sleeping, receive until no frame waits, and `arm` again.
    ///
    /// # Errors
    /// [`PortError::PeerViolation`] and [`PortError::Io`]; the port stays usable.
    fn service(&mut self) -> Result<LinkState, PortError>;

    /// Brings the link up, or takes it down so that the peer loses its carrier, until it is brought
    /// up again. Nothing happens if the port is an interface of the kernel, which is set there, or
    /// has no carrier. A rare call, which may block.
    ///
    /// # Errors
    /// [`PortError::LinkStays`].
    fn set_link(&mut self, to: LinkState) -> Result<(), PortError> {
        let _ = to;
        Ok(())
    }

    /// The link state as of the last call that could change it.
    fn link_state(&self) -> LinkState;

    /// Why the last connection to a peer, or the last attempt, ended; for messages. `None` while
    /// the link is up, and for ports that do not know.
    fn last_disconnect(&self) -> Option<&str> {
        None
    }

    /// The port's properties.
    fn capabilities(&self) -> PortCapabilities;

    /// Counters since the port was created; they survive reconnects.
    fn counters(&self) -> PortCounters;

    /// True if the port holds no frame: all that it took from the kernel were handed out, and all
    /// that were built are with the kernel.
    fn is_at_rest(&mut self) -> bool {
        true
    }

    /// Duplicates what another process needs to continue the port. Frames that it
    /// [holds](Port::is_at_rest) are not part of that. Until the caller knows whether another
    /// process has taken the port, it must not use it; if none has, the port continues.
    ///
    /// # Errors
    /// [`PortError::NotHandedOver`]; [`PortError::Io`] if the process is out of descriptors.
    fn hand_over(&mut self) -> Result<Handover, PortError> {
        let PortCapabilities { kind, name, .. } = self.capabilities();
        Err(PortError::NotHandedOver { port: name.to_string(), kind })
    }

    /// Another process has taken the port: dropping it then changes nothing at the interface.
    fn give_away(&mut self) {}

    /// No other process has the port any more: dropping it then restores what was changed at the
    /// interface. A port that was opened begins so, one that was taken over as if given away: until
    /// then it changes nothing for the process that gives it away.
    ///
    /// # Errors
    /// [`PortError::Io`], if the port keeps a setting of the other process; it works all the same.
    fn take_charge(&mut self) -> Result<(), PortError> {
        Ok(())
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    forward_port!(
        |self| **self => receive, receive_lent, transmit_room, transmit, transmit_pieces,
        transmit_lent, flush
    );
    forward_port!(|self| **self => arm, disarm, descriptors, service, set_link, link_state);
    forward_port!(|self| **self => last_disconnect, capabilities, counters);
    forward_port!(|self| **self => is_at_rest, hand_over, give_away, take_charge);
}

impl<P: Port + ?Sized> Port for &mut P {
    forward_port!(
        |self| **self => receive, receive_lent, transmit_room, transmit, transmit_pieces,
        transmit_lent, flush
    );
    forward_port!(|self| **self => arm, disarm, descriptors, service, set_link, link_state);
    forward_port!(|self| **self => last_disconnect, capabilities, counters);
    forward_port!(|self| **self => is_at_rest, hand_over, give_away, take_charge);
}

/// Copies `pieces` to `out`, one after another.
///
/// # Panics
/// If the length of `out` is not the sum of theirs.
pub fn join(pieces: &[&[u8]; 3], out: &mut [u8]) {
    let [first, second, third] = pieces;
    let (first_out, rest) = out.split_at_mut(first.len());
    let (second_out, third_out) = rest.split_at_mut(second.len());
    first_out.copy_from_slice(first);
    second_out.copy_from_slice(second);
    third_out.copy_from_slice(third);
}
