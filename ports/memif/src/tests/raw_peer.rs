//! A peer made of raw control messages and shared memory, which can violate any rule.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use longhaul_port::{Doorbell, Port, PortError};
use rustix::fs::fcntl_getfl;

use super::{TestPath, until};
use crate::MemifPort;
use crate::control::{Control, Received};
use crate::message::{AddRing, Init, MODE_ETHERNET, Message, SECRET_BYTES, VERSION};
use crate::region::Region;
use crate::ring::{Descriptor, Ring};
use crate::socket::connect_to;

pub(super) const SIZE_LOG2: u8 = 3;
pub(super) const REGION_BYTES: u32 = 1 << 16;
pub(super) const M2S_RING: u32 = 512;
pub(super) const S2M_BUFFERS: u32 = 4096;
pub(super) const M2S_BUFFERS: u32 = 8192;
pub(super) const BUFFER_BYTES: u32 = 256;

/// Waits for the next message on a raw control channel while servicing the port, whose error is
/// returned too.
pub(super) fn next_message(
    port: &mut MemifPort,
    control: &Control,
) -> (Message, Option<OwnedFd>, Option<PortError>) {
    let mut error = None;
    let (message, fd) = until("the port answers", || {
        error = error.take().or(port.service().err());
        match control.receive().unwrap() {
            Received::Message(message, fd) => Some((message, fd)),
            Received::Nothing => None,
            Received::Closed => panic!("the port closed without a word: {error:?}"),
        }
    });
    // The next call may report the cause of the port's answer.
    let error = error.or(port.service().err());
    (message, fd, error)
}

/// A slave made of raw parts.
pub(super) struct RawSlave {
    pub(super) control: Control,
    pub(super) region: Arc<Region>,
    pub(super) s2m: Ring,
    pub(super) m2s: Ring,
    pub(super) bell: Doorbell,
}

impl RawSlave {
    /// Connects, and waits for HELLO.
    pub(super) fn connect(path: &TestPath, port: &mut MemifPort) -> Self {
        let control = Control::new(connect_to(path.as_ref()).unwrap());
        let (hello, _, _) = next_message(port, &control);
        assert_eq!(hello.name(), "HELLO");
        let region = Arc::new(Region::create(REGION_BYTES as usize).unwrap());
        let s2m = Ring::new(&region, 0, SIZE_LOG2).unwrap();
        let m2s = Ring::new(&region, M2S_RING, SIZE_LOG2).unwrap();
        s2m.format(S2M_BUFFERS, BUFFER_BYTES, BUFFER_BYTES);
        m2s.format(M2S_BUFFERS, BUFFER_BYTES, BUFFER_BYTES);
        Self { control, region, s2m, m2s, bell: Doorbell::new().unwrap() }
    }

    /// The five messages of an honest slave.
    pub(super) fn script(&self) -> Vec<(Message, Option<OwnedFd>)> {
        let bell = || Some(self.bell.as_fd().try_clone_to_owned().unwrap());
        vec![
            (init(0), None),
            (
                Message::AddRegion { index: 0, bytes: u64::from(REGION_BYTES) },
                Some(self.region.as_fd().try_clone_to_owned().unwrap()),
            ),
            (Message::AddRing(add_ring(true)), bell()),
            (Message::AddRing(add_ring(false)), bell()),
            (Message::Connect { name: "raw".to_owned() }, None),
        ]
    }

    /// Sends the messages of `script`, and returns the last answer and the port's error.
    pub(super) fn say(
        &self,
        port: &mut MemifPort,
        script: Vec<(Message, Option<OwnedFd>)>,
    ) -> (Message, Option<PortError>) {
        let mut last = (Message::Ack, None);
        for (message, fd) in script {
            self.control.send(&message, fd.as_ref().map(AsFd::as_fd)).unwrap();
            let (answer, _, error) = next_message(port, &self.control);
            last = (answer, error);
            if matches!(last.0, Message::Disconnect { .. }) {
                break;
            }
        }
        last
    }

    /// A slave after an honest handshake.
    pub(super) fn connected(path: &TestPath, port: &mut MemifPort) -> Self {
        let slave = Self::connect(path, port);
        let (answer, error) = slave.say(port, slave.script());
        assert_eq!((answer.name(), error.is_none()), ("CONNECTED", true));
        slave
    }

    /// Writes a descriptor of the ring to the master, with the buffer of its slot.
    pub(super) fn fill(&self, index: u16, flags: u16, length: u32, byte: u8) {
        let offset = S2M_BUFFERS + u32::from(index % 8) * BUFFER_BYTES;
        self.poke(offset, &vec![byte; length as usize]);
        self.s2m.write(index, Descriptor { flags, region: 0, length, offset });
    }

    pub(super) fn poke(&self, offset: u32, bytes: &[u8]) {
        self.region.at(offset, bytes.len()).unwrap().copy_from(bytes);
    }

    pub(super) fn peek(&self, offset: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.at(offset, len).unwrap().copy_to(&mut bytes);
        bytes
    }
}

pub(super) fn init(id: u32) -> Message {
    Message::Init(Init {
        version: VERSION,
        id,
        mode: MODE_ETHERNET,
        secret: [0; SECRET_BYTES],
        name: "raw".to_owned(),
    })
}

pub(super) fn add_ring(slave_to_master: bool) -> AddRing {
    AddRing {
        slave_to_master,
        index: 0,
        region: 0,
        offset: if slave_to_master { 0 } else { M2S_RING },
        ring_size_log2: SIZE_LOG2,
        private_header_bytes: 0,
    }
}

/// Checks that a descriptor is still open.
pub(super) fn is_open(fd: impl AsFd) -> bool {
    fcntl_getfl(fd).is_ok()
}

/// The reason of a violation, if the error is one.
pub(super) fn detail(error: PortError) -> String {
    match error {
        PortError::PeerViolation { detail, .. } => detail,
        other => panic!("not a violation: {other}"),
    }
}
