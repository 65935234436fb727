//! Fuzzing against a peer that writes arbitrary bytes at arbitrary times into shared memory and the
//! control channel. A finding is a panic.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use longhaul_port::{Doorbell, FRAME_BYTES_MIN, PortCounters};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::config::MemifConfig;
use crate::handshake::{MasterHandshake, SlaveHandshake, Step};
use crate::message::Message;
use crate::receiver::{Buffers, Receiver};
use crate::region::Region;
use crate::ring::{Descriptor, Ring};
use crate::sender::{Built, Sender};
use crate::violation::Violation;

const REGION_BYTES: usize = 4096;
const RING_SIZE_LOG2: u8 = 3;
/// Offsets of the receive ring, which is at the region's start, and of the send ring.
const SEND_RING: u32 = 512;
const RECEIVE_BUFFERS: u32 = 1024;
const SEND_BUFFERS: u32 = 2560;
const BUFFER_BYTES: u32 = 128;
const FRAME_BYTES_MAX: usize = 300;
const STEPS_MAX: usize = 256;

/// Region and bell, created once, since system calls take longer than a run.
struct Fixture {
    region: Arc<Region>,
    bell: Doorbell,
}

thread_local! {
    static FIXTURE: RefCell<Fixture> = RefCell::new(Fixture {
        region: Arc::new(Region::create(REGION_BYTES).expect("memory")),
        bell: Doorbell::new().expect("a descriptor"),
    });
}

/// The bytes of a script, followed by endless zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let (now, rest) = self.0.split_at(N.min(self.0.len()));
        taken[..now.len()].copy_from_slice(now);
        self.0 = rest;
        taken
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }
}

/// One side of two rings, and the peer's access to the same memory.
struct Rings {
    region: Arc<Region>,
    receiver: Receiver,
    sender: Sender,
    /// The peer's view.
    rings: [Ring; 2],
    counters: PortCounters,
    is_master: bool,
}

impl Rings {
    fn new(fixture: &Fixture, is_master: bool) -> Self {
        let region = Arc::clone(&fixture.region);
        region.at(0, REGION_BYTES).expect("all of it").copy_from(&[0x5a; REGION_BYTES]);
        let [receive, send] = [0, SEND_RING]
            .map(|at| Ring::new(&region, at, RING_SIZE_LOG2).expect("a ring that fits"));
        receive.format(RECEIVE_BUFFERS, BUFFER_BYTES, BUFFER_BYTES);
        send.format(SEND_BUFFERS, BUFFER_BYTES, BUFFER_BYTES);
        let rings = [0, SEND_RING]
            .map(|at| Ring::new(&region, at, RING_SIZE_LOG2).expect("a ring that fits"));
        let bell = fixture.bell.as_fd().try_clone_to_owned().expect("a descriptor");
        let bell = Doorbell::from_peer(bell).expect("a counter");
        let (receiver, sender) = if is_master {
            let regions = vec![Arc::clone(&region)];
            send.publish_head(1 << RING_SIZE_LOG2);
            (
                Receiver::master(receive, regions.clone(), FRAME_BYTES_MAX),
                Sender::master(send, regions, bell, FRAME_BYTES_MAX),
            )
        } else {
            let buffers = |first, bytes| Buffers {
                region: Arc::clone(&region),
                first,
                stride: BUFFER_BYTES,
                bytes,
            };
            (
                Receiver::slave(receive, buffers(RECEIVE_BUFFERS, BUFFER_BYTES), FRAME_BYTES_MAX),
                Sender::slave(
                    send,
                    buffers(SEND_BUFFERS, BUFFER_BYTES),
                    bell,
                    BUFFER_BYTES as usize,
                ),
            )
        };
        Rings { region, receiver, sender, rings, counters: PortCounters::default(), is_master }
    }

    /// Performs one step of the peer.
    fn peer(&mut self, what: u8, script: &mut Script<'_>) {
        let ring = &self.rings[usize::from(what >> 7)];
        match what & 3 {
            0 => ring.publish_head(script.word()),
            1 => ring.publish_tail(script.word()),
            2 => {
                let [index, flags, region, offset_high] = script.bytes();
                let (length, offset) = (u32::from(script.word()), u32::from(script.word()));
                let (region, offset) = (u16::from(region), offset | u32::from(offset_high) << 24);
                ring.write(
                    u16::from(index),
                    Descriptor { flags: u16::from(flags), region, length, offset },
                );
            }
            _ => {
                let at = usize::from(script.word()) % REGION_BYTES;
                let bytes: [u8; 8] = script.bytes();
                let len = bytes.len().min(REGION_BYTES - at);
                self.region.at(at as u32, len).expect("inside").copy_from(&bytes[..len]);
            }
        }
    }

    /// Receives frames, and checks their lengths and number.
    fn receive(&mut self, max: usize) -> Result<(), Violation> {
        let before = self.counters.rx_frames;
        let mut came = 0;
        let handed = self.receiver.receive(max, &mut self.counters, &mut |frame| {
            assert!(
                (FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame.len()),
                "{} bytes",
                frame.len()
            );
            came += 1;
        })?;
        assert!(
            came == handed && handed <= max,
            "{came} frames came, {handed} were said, {max} wanted"
        );
        assert_eq!(self.counters.rx_frames - before, handed as u64);
        Ok(())
    }

    /// Sends a frame. Checks that it is built at most once and, as slave, that only its buffer and
    /// the ring change.
    fn send(&mut self, len: usize) -> Result<(), Violation> {
        let len = if self.is_master { len } else { len.min(BUFFER_BYTES as usize) };
        let len = len.max(FRAME_BYTES_MIN);
        if len.is_multiple_of(2) {
            let bytes = [0xa5; FRAME_BYTES_MAX];
            let (first, rest) = bytes[..len].split_at(len / 3);
            let _ = self.sender.send(len, &[first, rest, &[]])?;
            let _ = self.sender.publish();
            return Ok(());
        }
        let mut filled = 0;
        let built = self.sender.build(len, &mut |frame| {
            filled += 1;
            frame.fill(0xa5);
        })?;
        assert_eq!(filled, u32::from(built != Built::Full), "{built:?}");
        let _ = self.sender.publish();
        Ok(())
    }

    fn step(&mut self, what: u8, script: &mut Script<'_>) -> Result<(), Violation> {
        match what & 7 {
            0..=3 => self.peer(what, script),
            4 => self.receive(usize::from(what >> 3 & 7))?,
            5 => self.send(usize::from(script.word()) % (FRAME_BYTES_MAX + 1))?,
            6 => {
                let (_, room) = (self.receiver.waiting()?, self.sender.room()?);
                assert!(
                    room <= 1 << RING_SIZE_LOG2,
                    "room for {room} in a ring of {}",
                    1 << RING_SIZE_LOG2
                );
            }
            _ => {
                self.receiver.request_interrupts(what & 8 != 0);
                if what == 0xff {
                    self.receiver.end();
                }
            }
        }
        Ok(())
    }
}

/// Rings in both directions, as master or slave by the first byte, against a peer that takes the
/// steps of the remaining bytes between calls of the port. A violation ends the connection; until
/// then every frame has a valid length.
///
/// # Panics
/// On a finding.
pub fn rings(data: &[u8]) {
    let Some((&role, steps)) = data.split_first() else { return };
    FIXTURE.with_borrow(|fixture| {
        let mut rings = Rings::new(fixture, role & 1 == 0);
        let mut script = Script(steps);
        for _ in 0..STEPS_MAX {
            if script.0.is_empty() {
                break;
            }
            let [what] = script.bytes();
            if rings.step(what, &mut script).is_err() {
                break;
            }
        }
        let end = REGION_BYTES as u32 - 512;
        let mut last = [0; 512];
        rings.region.at(end, 512).expect("inside").copy_to(&mut last);
    });
}

/// Arbitrary control messages, with any descriptor and in any order, to a master or a slave in the
/// handshake.
///
/// # Panics
/// On a finding.
pub fn control(data: &[u8]) {
    let Some((&role, messages)) = data.split_first() else { return };
    let config = MemifConfig {
        ring_size_log2: RING_SIZE_LOG2,
        frame_bytes_max: 300,
        ..MemifConfig::new("fuzz")
    };
    let mut script = Script(messages);
    let (mut master, mut slave) = (MasterHandshake::new(&config), SlaveHandshake::new(3, &config));
    for _ in 0..40 {
        if script.0.is_empty() {
            return;
        }
        let [which] = script.bytes();
        let bytes: [u8; crate::message::MESSAGE_BYTES] = script.bytes();
        let Ok(message) = Message::decode(&bytes) else { continue };
        let again = message.encode();
        assert_eq!(
            Message::decode(&again).map(|message| message.encode()),
            Ok(again),
            "what we write is read back"
        );
        let step = if role & 1 == 0 {
            master.handle(message, descriptor(which))
        } else {
            slave.handle(message)
        };
        match step {
            Ok(Step::Answer(_)) => {}
            Ok(Step::Up(mut queues, _)) => {
                let mut counters = PortCounters::default();
                let _ = queues.receiver.receive(8, &mut counters, &mut |_| ());
                let _ = queues.sender.build(60, &mut |frame| frame.fill(1));
                return;
            }
            Ok(Step::Left(_)) | Err(_) => return,
        }
    }
}

/// A descriptor that accompanies a message.
fn descriptor(which: u8) -> Option<OwnedFd> {
    FIXTURE.with_borrow(|fixture| match which & 3 {
        0 => None,
        1 => fixture.region.as_fd().try_clone_to_owned().ok(),
        2 => fixture.bell.as_fd().try_clone_to_owned().ok(),
        _ => memfd_create("fuzz", MemfdFlags::CLOEXEC).ok(),
    })
}
