//! Negotiation of regions and rings, with one state machine per role.
//!
//! The master sends HELLO. The slave sends INIT, ADD_REGION, an ADD_RING for each ring and CONNECT,
//! each after the ACK of the previous message; the master confirms the last with CONNECTED. These
//! types process messages; they own no socket and send nothing themselves.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use longhaul_port::Doorbell;

use crate::config::{MemifConfig, RING_SIZE_LOG2_MAX};
use crate::message::{
    AddRing, Hello, Init, MODE_ETHERNET, Message, NAME_BYTES, SECRET_BYTES, VERSION,
};
use crate::receiver::{Buffers, Receiver};
use crate::region::Region;
use crate::ring::Ring;
use crate::sender::Sender;
use crate::violation::{Violation, violation};

/// Maximum number of regions that a master accepts from one slave.
const REGIONS_MAX: usize = 16;
/// Name of this software for peers.
const APPLICATION: &str = concat!("longhaul ", env!("CARGO_PKG_VERSION"));
const _: () = assert!(APPLICATION.len() < NAME_BYTES);

/// The two queues of an established connection.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// The peer rings it when frames arrive while interrupts are on.
    pub(crate) receive_bell: Doorbell,
    pub(crate) peer_name: String,
}

/// The result of a message.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send the slave's next message, or this answer of the master.
    Answer(Message),
    /// The connection is established. Send this message first, if any.
    Up(Box<Queues>, Option<Message>),
    /// The peer disconnected, with this reason.
    Left(String),
}

/// The master's limits for a slave.
pub(crate) fn hello() -> Message {
    Message::Hello(Hello {
        name: APPLICATION.to_owned(),
        version_min: VERSION,
        version_max: VERSION,
        region_max: REGIONS_MAX as u16 - 1,
        m2s_ring_max: 0,
        s2m_ring_max: 0,
        ring_size_log2_max: RING_SIZE_LOG2_MAX,
    })
}

/// The secret in its field, zero-padded.
pub(crate) fn secret_field(secret: Option<&str>) -> [u8; SECRET_BYTES] {
    let mut field = [0; SECRET_BYTES];
    let secret = secret.unwrap_or_default().as_bytes();
    field[..secret.len()].copy_from_slice(secret);
    field
}

fn unexpected(message: &Message, state: &str) -> Violation {
    violation!("unexpected {} while {state}", message.name())
}

// ---------------------------------------------------------------------------------------------
// Master

struct RingOffer {
    place: AddRing,
    bell: Doorbell,
}

/// The master's side, from INIT on.
pub(crate) struct MasterHandshake {
    regions: Vec<Arc<Region>>,
    bytes_left: u64,
    s2m: Option<RingOffer>,
    m2s: Option<RingOffer>,
    frame_bytes_max: usize,
    name: String,
}

impl MasterHandshake {
    pub(crate) fn new(config: &MemifConfig) -> Self {
        Self {
            regions: Vec::new(),
            bytes_left: config.region_bytes_max,
            s2m: None,
            m2s: None,
            frame_bytes_max: config.frame_bytes_max,
            name: config.name.clone(),
        }
    }

    pub(crate) fn handle(
        &mut self,
        message: Message,
        fd: Option<OwnedFd>,
    ) -> Result<Step, Violation> {
        match message {
            Message::AddRegion { index, bytes } => self.add_region(index, bytes, fd)?,
            Message::AddRing(place) => self.add_ring(place, fd)?,
            Message::Connect { name } => {
                let queues = self.connect(name)?;
                let answer = Message::Connected { name: self.name.clone() };
                return Ok(Step::Up(Box::new(queues), Some(answer)));
            }
            Message::Disconnect { reason, .. } => return Ok(Step::Left(reason)),
            other => return Err(unexpected(&other, "regions and rings are announced")),
        }
        Ok(Step::Answer(Message::Ack))
    }

    fn add_region(&mut self, index: u16, bytes: u64, fd: Option<OwnedFd>) -> Result<(), Violation> {
        let fd = fd.ok_or_else(|| violation!("ADD_REGION without a descriptor"))?;
        let expected = self.regions.len();
        if usize::from(index) != expected || expected >= REGIONS_MAX {
            return Err(violation!("region index {index} where {expected} comes next"));
        }
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| {
            let left = self.bytes_left;
            violation!("region of {bytes} bytes exceeds the {left} bytes that are left")
        })?;
        self.regions.push(Arc::new(Region::from_peer(fd, bytes)?));
        Ok(())
    }

    fn add_ring(&mut self, place: AddRing, fd: Option<OwnedFd>) -> Result<(), Violation> {
        let fd = fd.ok_or_else(|| violation!("ADD_RING without an interrupt descriptor"))?;
        if place.index != 0 {
            return Err(violation!("ring index {}: only ring 0 is supported", place.index));
        }
        if place.ring_size_log2 > RING_SIZE_LOG2_MAX {
            let (size, max) = (place.ring_size_log2, RING_SIZE_LOG2_MAX);
            return Err(violation!("ring of 2^{size} descriptors is over 2^{max}"));
        }
        if place.private_header_bytes != 0 {
            return Err(violation!("private headers are not supported"));
        }
        let bell = Doorbell::from_peer(fd)
            .map_err(|error| violation!("the interrupt descriptor is unusable: {error}"))?;
        let offer = if place.slave_to_master { &mut self.s2m } else { &mut self.m2s };
        if offer.replace(RingOffer { place, bell }).is_some() {
            return Err(violation!("the same ring was announced twice"));
        }
        Ok(())
    }

    fn connect(&mut self, peer_name: String) -> Result<Queues, Violation> {
        let (Some(s2m), Some(m2s)) = (self.s2m.take(), self.m2s.take()) else {
            return Err(violation!("CONNECT before both rings were announced"));
        };
        let regions = std::mem::take(&mut self.regions);
        let ring = |place: AddRing| {
            let region = regions.get(usize::from(place.region)).ok_or_else(|| {
                violation!("a ring lies in region {} of {}", place.region, regions.len())
            })?;
            let ring = Ring::new(region, place.offset, place.ring_size_log2)?;
            ring.check_cookie()?;
            Ok(ring)
        };
        let receive_ring = ring(s2m.place)?;
        let send_ring = ring(m2s.place)?;
        let frames = self.frame_bytes_max;
        Ok(Queues {
            receiver: Receiver::master(receive_ring, regions.clone(), frames),
            sender: Sender::master(send_ring, regions, m2s.bell, frames),
            receive_bell: s2m.bell,
            peer_name,
        })
    }
}

// ---------------------------------------------------------------------------------------------
// Slave

/// Offsets of the parts of the slave's only region, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    ring_size_log2: u8,
    m2s_ring: u32,
    s2m_buffers: u32,
    m2s_buffers: u32,
    /// Distance between buffers, and usable bytes of each.
    stride: u32,
    buffer_bytes: u32,
    bytes: u32,
}

impl Layout {
    /// Both rings, then the buffers of each. All parts are aligned to cache lines.
    ///
    /// The largest configuration takes just over 2 GiB, so 32-bit offsets suffice.
    fn new(ring_size_log2: u8, frame_bytes_max: usize) -> Self {
        let ring_bytes = Ring::bytes(ring_size_log2).next_multiple_of(64) as u32;
        let stride = frame_bytes_max.next_multiple_of(64) as u32;
        let buffers_bytes = stride << ring_size_log2;
        let s2m_buffers = (2 * ring_bytes).next_multiple_of(4096);
        let m2s_buffers = s2m_buffers + buffers_bytes;
        Self {
            ring_size_log2,
            m2s_ring: ring_bytes,
            s2m_buffers,
            m2s_buffers,
            stride,
            buffer_bytes: frame_bytes_max as u32,
            bytes: m2s_buffers + buffers_bytes,
        }
    }
}

/// Resources that the slave creates for one connection.
struct Offer {
    layout: Layout,
    region: Arc<Region>,
    s2m_bell: Doorbell,
    m2s_bell: Doorbell,
    s2m_ring: Ring,
    m2s_ring: Ring,
}

impl Offer {
    fn new(layout: Layout) -> io::Result<Self> {
        let region = Arc::new(Region::create(layout.bytes as usize)?);
        let ring = |offset| {
            Ring::new(&region, offset, layout.ring_size_log2)
                .expect("the layout has both rings inside the region")
        };
        let (s2m_ring, m2s_ring) = (ring(0), ring(layout.m2s_ring));
        for (ring, buffers) in [(&s2m_ring, layout.s2m_buffers), (&m2s_ring, layout.m2s_buffers)] {
            ring.format(buffers, layout.stride, layout.buffer_bytes);
        }
        Ok(Self {
            layout,
            s2m_bell: Doorbell::new()?,
            m2s_bell: Doorbell::new()?,
            region,
            s2m_ring,
            m2s_ring,
        })
    }
}

/// The slave's side.
pub(crate) struct SlaveHandshake {
    id: u32,
    config: MemifConfig,
    offer: Option<Offer>,
    /// Number of the slave's messages sent so far.
    sent: usize,
}

impl SlaveHandshake {
    pub(crate) fn new(id: u32, config: &MemifConfig) -> Self {
        Self { id, config: config.clone(), offer: None, sent: 0 }
    }

    pub(crate) fn handle(&mut self, message: Message) -> Result<Step, Violation> {
        match message {
            Message::Hello(hello) if self.offer.is_none() => self.accept_hello(&hello)?,
            Message::Ack if (1..CONNECT_SENT).contains(&self.sent) => {}
            Message::Connected { name } if self.sent == CONNECT_SENT => {
                return self.connected(name);
            }
            Message::Disconnect { reason, .. } => return Ok(Step::Left(reason)),
            other => return Err(unexpected(&other, "connecting as slave")),
        }
        Ok(Step::Answer(self.next_message()))
    }

    fn accept_hello(&mut self, hello: &Hello) -> Result<(), Violation> {
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            let (min, max) = (hello.version_min, hello.version_max);
            return Err(violation!("memif versions {min:#x} to {max:#x} without {VERSION:#x}"));
        }
        let size_log2 = self.config.ring_size_log2.min(hello.ring_size_log2_max);
        let layout = Layout::new(size_log2, self.config.frame_bytes_max);
        let offer = Offer::new(layout)
            .map_err(|error| violation!("no shared memory for the connection: {error}"))?;
        self.offer = Some(offer);
        Ok(())
    }

    fn next_message(&mut self) -> Message {
        let layout = self.offer.as_ref().expect("made when HELLO arrived").layout;
        let ring = |slave_to_master, offset| {
            Message::AddRing(AddRing {
                slave_to_master,
                index: 0,
                region: 0,
                offset,
                ring_size_log2: layout.ring_size_log2,
                private_header_bytes: 0,
            })
        };
        let message = match self.sent {
            0 => Message::Init(Init {
                version: VERSION,
                id: self.id,
                mode: MODE_ETHERNET,
                secret: secret_field(self.config.secret.as_deref()),
                name: APPLICATION.to_owned(),
            }),
            1 => Message::AddRegion { index: 0, bytes: u64::from(layout.bytes) },
            2 => ring(true, 0),
            3 => ring(false, layout.m2s_ring),
            _ => Message::Connect { name: self.config.name.clone() },
        };
        self.sent += 1;
        message
    }

    /// The descriptor that belongs to the last message.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let offer = self.offer.as_ref()?;
        match self.sent {
            2 => Some(offer.region.as_fd()),
            3 => Some(offer.s2m_bell.as_fd()),
            4 => Some(offer.m2s_bell.as_fd()),
            _ => None,
        }
    }

    /// Starts the queues. Buffers are posted only now, because some masters reset both indices of
    /// each ring just before they send CONNECTED.
    fn connected(&mut self, peer_name: String) -> Result<Step, Violation> {
        let offer = self.offer.take().expect("CONNECT was sent with it");
        offer.s2m_ring.check_cookie()?;
        offer.m2s_ring.check_cookie()?;
        let frames = self.config.frame_bytes_max;
        let buffers = |first| Buffers {
            region: Arc::clone(&offer.region),
            first,
            stride: offer.layout.stride,
            bytes: offer.layout.buffer_bytes,
        };
        let send_buffers = buffers(offer.layout.s2m_buffers);
        let receive_buffers = buffers(offer.layout.m2s_buffers);
        let queues = Queues {
            sender: Sender::slave(offer.s2m_ring, send_buffers, offer.s2m_bell, frames),
            receiver: Receiver::slave(offer.m2s_ring, receive_buffers, frames),
            receive_bell: offer.m2s_bell,
            peer_name,
        };
        Ok(Step::Up(Box::new(queues), None))
    }
}

/// Number of the slave's messages sent once CONNECT is.
const CONNECT_SENT: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_layout_fits_32_bit_offsets() {
        let layout = Layout::new(RING_SIZE_LOG2_MAX, 65535);
        assert_eq!(layout.stride, 65536);
        assert!(layout.bytes > layout.m2s_buffers);
        assert_eq!(layout.bytes - layout.m2s_buffers, 1 << 30);
    }

    #[test]
    fn the_smallest_layout_does_not_overlap() {
        let layout = Layout::new(0, 64);
        assert_eq!(layout.m2s_ring, 192);
        assert_eq!(layout.s2m_buffers, 4096);
        assert_eq!((layout.m2s_buffers, layout.bytes), (4160, 4224));
    }

    #[test]
    fn a_slave_speaks_in_the_published_order() {
        let mut slave = SlaveHandshake::new(7, &MemifConfig::new("s"));
        let mut names = Vec::new();
        let mut input = hello();
        for _ in 0..5 {
            let Step::Answer(message) = slave.handle(input).unwrap() else { panic!("no answer") };
            names.push((message.name(), slave.descriptor().is_some()));
            input = Message::Ack;
        }
        let expected = [
            ("INIT", false),
            ("ADD_REGION", true),
            ("ADD_RING", true),
            ("ADD_RING", true),
            ("CONNECT", false),
        ];
        assert_eq!(names, expected);
        assert!(slave.handle(Message::Ack).is_err(), "an ACK of CONNECT does not exist");
    }
}
