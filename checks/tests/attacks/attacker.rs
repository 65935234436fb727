//! The attacker: a station in the middle of the fibre between two boxes, with one capability.

use crate::forge::{ROCE_PORT, bytes_of};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::Instant;
use longhaul_wire::{Head, Udp, address_bits};
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

/// The attacker's own address: datagrams to it reach the attacker, whatever its capability.
pub const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 66, 0, 1));

/// A third party's address.
pub const VICTIM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 88, 0, 1));

/// A datagram in the middle of the fibre, towards site 0 or 1.
#[derive(Clone, Debug)]
pub struct Crossing {
    pub toward: usize,
    pub bytes: Vec<u8>,
}

impl Crossing {
    pub fn new(toward: usize, bytes: Vec<u8>) -> Crossing {
        Crossing { toward, bytes }
    }
}

type Sees = Box<dyn FnMut(Instant, &Crossing)>;
type Loses = Box<dyn FnMut(Instant, &Crossing) -> bool>;
type Rewrites = Box<dyn FnMut(Instant, Crossing) -> Vec<Crossing>>;

/// The attacker's capability. Every attacker can send.
pub enum Power {
    /// Sees only datagrams to its own address.
    Send,
    Read(Sees),
    /// `true` drops the datagram.
    Drop(Loses),
    Write(Rewrites),
}

/// Observations of an attack from outside.
#[derive(Default)]
pub struct Tally {
    /// Bytes sent by the attacker, and bytes to its own address.
    pub sent_bytes: u64,
    pub heard_bytes: u64,
    /// Bytes to a third party that is unrelated to the boxes.
    pub victim_bytes: u64,
    pub sent: u64,
    /// Datagrams to send next.
    pub to_send: Vec<Crossing>,
    /// Datagrams to its own address that it has not taken yet.
    pub heard: Vec<Vec<u8>>,
    /// RDMA that a box sent in cleartext.
    pub in_the_clear: u64,
}

pub type Shared<T> = Rc<RefCell<T>>;

pub fn shared<T>(value: T) -> Shared<T> {
    Rc::new(RefCell::new(value))
}

/// The attacker.
pub struct Attacker {
    power: Power,
    waiting: Vec<Crossing>,
    tally: Shared<Tally>,
}

impl Attacker {
    pub fn new(power: Power) -> Attacker {
        Attacker { power, waiting: Vec::new(), tally: Shared::default() }
    }

    pub fn tally(&self) -> Shared<Tally> {
        self.tally.clone()
    }
}

fn is_to(bytes: &[u8], address: IpAddr) -> bool {
    Udp::find(bytes).is_some_and(|udp| udp.destination_bits(bytes) == address_bits(address))
}

impl Node for Attacker {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let crossing = Crossing::new(1 - side, bytes_of(frame));
        let mut tally = self.tally.borrow_mut();
        let is_roce = |udp: Udp| udp.destination_port(&crossing.bytes) == ROCE_PORT;
        tally.in_the_clear += u64::from(Udp::find(&crossing.bytes).is_some_and(is_roce));
        if is_to(&crossing.bytes, OWN) {
            tally.heard_bytes += crossing.bytes.len() as u64;
            return tally.heard.push(crossing.bytes);
        }
        if is_to(&crossing.bytes, VICTIM) {
            tally.victim_bytes += crossing.bytes.len() as u64;
            return;
        }
        drop(tally);
        match &mut self.power {
            Power::Send => self.waiting.push(crossing),
            Power::Read(sees) => {
                sees(now, &crossing);
                self.waiting.push(crossing);
            }
            Power::Drop(loses) => {
                if !loses(now, &crossing) {
                    self.waiting.push(crossing);
                }
            }
            Power::Write(rewrites) => self.waiting.extend(rewrites(now, crossing)),
        }
    }

    fn handle_timeout(&mut self, _now: Instant) {}

    fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
        let mut tally = self.tally.borrow_mut();
        let own = std::mem::take(&mut tally.to_send);
        tally.sent += own.len() as u64;
        tally.sent_bytes += own.iter().map(|crossing| crossing.bytes.len() as u64).sum::<u64>();
        self.waiting.extend(own);
        drop(tally);
        for crossing in self.waiting.drain(..) {
            let head = Head::copy_of(&crossing.bytes);
            let frame = Frame::received(&head, &crossing.bytes);
            out.transmit(
                crossing.toward,
                &frame.unwrap_or_else(|_| Frame::opaque(&crossing.bytes)),
            );
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        None
    }
}
