//! Memory whose bytes are derived from their address, and which knows the byte to be written next.
//!
//! Every message has its own places at both ends. Each write is checked against the plan at once:
//! each packet once, in order, in its place, with the bytes of its sender.

use super::plan::{Plan, Stream};
use longhaul_node::{Gather, Payload};
use longhaul_rnic::Memory;
use std::collections::HashMap;
use std::rc::Rc;

const BASE: u64 = 1 << 52;
const QP_SHIFT: u32 = 38;
const AREA_SHIFT: u32 = 35;

/// Use of a piece of a QP's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    /// Sources of SENDs and WRITEs.
    Source,
    /// Targets of the peer's WRITEs.
    Written,
    /// Receives.
    Received,
    /// Targets of READs and atomics.
    Fetched,
    /// Sources of the peer's READs.
    Readable,
    /// Words for the peer's atomics, one per life.
    Words,
}

const AREAS: [Area; 6] =
    [Area::Source, Area::Written, Area::Received, Area::Fetched, Area::Readable, Area::Words];

pub fn address(qp: usize, area: Area, offset: u64) -> u64 {
    BASE + ((qp as u64) << QP_SHIFT | (area as u64) << AREA_SHIFT | offset)
}

/// First byte and length of the memory of `qps` QPs.
pub fn extent(qps: usize) -> (u64, u64) {
    (BASE, (qps as u64) << QP_SHIFT)
}

fn place(address: u64) -> (usize, Area, u64) {
    let at = address - BASE;
    let area = AREAS[(at >> AREA_SHIFT) as usize % 8];
    ((at >> QP_SHIFT) as usize, area, at & ((1 << AREA_SHIFT) - 1))
}

/// The eight bytes of a host at an address, a multiple of eight.
fn word_at(host: usize, address: u64) -> u64 {
    let mut z = (address ^ (host as u64) << 62).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^= z >> 31;
    z.wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn fill(host: usize, address: u64, out: &mut [u8]) {
    for (at, chunk) in (address..).step_by(8).zip(out.chunks_mut(8)) {
        chunk.copy_from_slice(&word_at(host, at).to_le_bytes()[..chunk.len()]);
    }
}

/// Position of the next byte: a message of a stream, and how much of it was written.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cursor {
    pub message: usize,
    pub offset: u32,
}

impl Cursor {
    /// Skips to the next of the stream's messages that writes bytes here.
    fn settle(&mut self, stream: &Stream, counts: impl Fn(usize) -> bool) {
        while self.message < stream.messages.len()
            && (!counts(self.message) || self.offset == stream.messages[self.message].len)
        {
            *self = Cursor { message: self.message + 1, offset: 0 };
        }
    }
}

/// The memory of one host.
pub struct Pattern {
    host: usize,
    plan: Rc<Plan>,
    mtu: u32,
    /// By QP: progress of the peer's requests, and of this host's fetches.
    placed: Vec<Cursor>,
    fetched: Vec<Cursor>,
    words: HashMap<u64, u64>,
    /// By QP: index behind the last of the peer's messages known to have arrived.
    reached: Vec<usize>,
    /// By word: index behind its last atomic.
    reached_atomic: HashMap<u64, usize>,
    pub violations: Vec<String>,
    expected: Vec<u8>,
    got: Vec<u8>,
}

impl Pattern {
    pub fn new(host: usize, plan: &Rc<Plan>, mtu: u32) -> Pattern {
        let qps = plan.streams.len();
        let mut memory = Pattern {
            host,
            plan: plan.clone(),
            mtu,
            placed: vec![Cursor::default(); qps],
            fetched: vec![Cursor::default(); qps],
            words: HashMap::new(),
            reached: vec![0; qps],
            reached_atomic: HashMap::new(),
            violations: Vec::new(),
            expected: vec![0; mtu as usize],
            got: vec![0; mtu as usize],
        };
        (0..qps).for_each(|qp| memory.begin_life(qp, 0));
        memory
    }

    /// Skips the messages of earlier lives, which are never written.
    pub fn begin_life(&mut self, qp: usize, life: usize) {
        let [incoming, outgoing] =
            [1 - self.host, self.host].map(|from| &self.plan.streams[qp][from]);
        let at = |stream: &Stream| Cursor { message: stream.first_of(life), offset: 0 };
        self.placed[qp] = at(incoming);
        self.placed[qp].settle(incoming, |m| incoming.messages[m].kind.places());
        self.fetched[qp] = at(outgoing);
        self.fetched[qp].settle(outgoing, |m| outgoing.messages[m].kind.fetches());
    }

    /// The first of the peer's messages with missing bytes.
    pub fn placed(&self, qp: usize) -> usize {
        self.placed[qp].message
    }

    /// Index behind the last of the peer's messages known to have arrived; one without bytes leaves
    /// no trace here.
    pub fn reached(&self, qp: usize) -> usize {
        self.reached[qp]
    }

    /// The first of this host's READs and atomics with missing bytes.
    pub fn fetched(&self, qp: usize) -> usize {
        self.fetched[qp].message
    }

    /// Address of the word for the peer's atomics of a life.
    pub fn word(&self, qp: usize, life: usize) -> u64 {
        self.words.get(&address(qp, Area::Words, life as u64 * 8)).copied().unwrap_or(0)
    }

    fn violation(&mut self, what: impl FnOnce() -> String) {
        if self.violations.len() < 8 {
            let what = format!("host {}: {}", self.host, what());
            self.violations.push(what);
        }
    }

    /// Address and length of the packet that must come next in an area, if any; stores its bytes in
    /// `expected`.
    fn next(&mut self, qp: usize, area: Area) -> Option<(u64, usize)> {
        let is_fetch = area == Area::Fetched;
        let (cursor, from) = match is_fetch {
            true => (self.fetched[qp], self.host),
            false => (self.placed[qp], 1 - self.host),
        };
        let message = self.plan.streams[qp][from].messages.get(cursor.message)?;
        let len = (message.len - cursor.offset).min(self.mtu) as usize;
        let own = cursor.message as u64 * self.plan.stride;
        let into = cursor.offset as u64;
        let (to, from_area) = match message.kind {
            kind if kind.fetches() => (address(qp, Area::Fetched, own), Area::Readable),
            super::plan::Kind::Send | super::plan::Kind::SendImmediate => {
                let receive = message.receive as u64 * self.plan.stride;
                (address(qp, Area::Received, receive), Area::Source)
            }
            _ => (address(qp, Area::Written, own), Area::Source),
        };
        self.expected.resize(len, 0);
        match message.kind.is_atomic() {
            true => self.expected.copy_from_slice(&message.before.to_ne_bytes()),
            false => {
                let holder = 1 - self.host;
                fill(holder, address(qp, from_area, own + into), &mut self.expected);
            }
        }
        Some((to + into, len))
    }

    fn advance(&mut self, qp: usize, area: Area, len: usize) {
        let (cursor, from) = match area == Area::Fetched {
            true => (&mut self.fetched[qp], self.host),
            false => (&mut self.placed[qp], 1 - self.host),
        };
        cursor.offset += len as u32;
        let stream = &self.plan.streams[qp][from];
        let is_fetch = area == Area::Fetched;
        if !is_fetch && cursor.offset == stream.messages[cursor.message].len {
            self.reached[qp] = self.reached[qp].max(cursor.message + 1);
        }
        cursor.settle(stream, |m| stream.messages[m].kind.fetches() == is_fetch);
    }

    /// Notes the peer's next atomic.
    fn reach_atomic(&mut self, address: u64) {
        let (qp, _, offset) = place(address);
        let stream = &self.plan.streams[qp][1 - self.host];
        let from = self.reached_atomic.get(&address).copied();
        let from = from.unwrap_or_else(|| stream.first_of(offset as usize / 8));
        let next = (from..stream.messages.len())
            .find(|&message| stream.messages[message].kind.is_atomic());
        let Some(next) = next else { return };
        self.reached_atomic.insert(address, next + 1);
        self.reached[qp] = self.reached[qp].max(next + 1);
    }
}

impl Gather for Pattern {
    fn gather(&self, address: u64, out: &mut [u8]) {
        fill(self.host, address, out);
    }
}

impl Memory for Pattern {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let (qp, area, offset) = place(address);
        if payload.is_empty() {
            return;
        }
        let next = self.next(qp, area);
        if next != Some((address, payload.len())) {
            let found = format!("{} bytes at {area:?} + {offset:#x} of QP {qp}", payload.len());
            let wanted = next.map(|(at, len)| (place(at), len));
            let cursors = (self.placed[qp], self.fetched[qp]);
            return self.violation(|| format!("{found}, not {wanted:x?}, cursors {cursors:?}"));
        }
        let mut got = std::mem::take(&mut self.got);
        got.resize(payload.len(), 0);
        payload.copy_to(&mut got);
        if got != self.expected {
            self.violation(|| format!("other bytes at {area:?} + {offset:#x} of QP {qp}"));
        }
        self.got = got;
        self.advance(qp, area, payload.len());
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        self.reach_atomic(address);
        let word = self.words.entry(address).or_default();
        let found = *word;
        *word = found.wrapping_add(add);
        found
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        self.reach_atomic(address);
        let word = self.words.entry(address).or_default();
        let found = *word;
        if found == compare {
            *word = swap;
        }
        found
    }
}
