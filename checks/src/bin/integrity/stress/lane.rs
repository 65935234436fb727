//! One RC queue pair, with the work of both sides on it and its memory.
//!
//! A side posts a batch and then a SEND that marks its end. When the other's mark has arrived, so
//! has everything that the other did in that batch; then memory is compared, and the next batch
//! begins. Targets and receives of two batches alternate: a mark shows that those of the previous
//! batch have been compared.

use super::plan::{Shape, Step, Verb};
use crate::Fault;
use crate::plan::fill;
use crate::session::Remote;
use crate::transfer;
use longhaul_rdma::{
    Access, Completion, CompletionOp, MemoryRegion, Piece, ProtectionDomain, QueuePair, SendOp,
    Status,
};
use longhaul_units::RKey;
use std::collections::VecDeque;

/// A mark: number of the batch, and the key that the next batch may invalidate.
const MARK_LEN: usize = 12;
const MARK_ROOM: usize = 64;

/// The next expected completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    wr_id: u64,
    op: CompletionOp,
    byte_len: usize,
    immediate: Option<u32>,
    invalidated: Option<RKey>,
}

impl Expected {
    fn is_met_by(&self, completion: &Completion) -> bool {
        completion.status == Status::Success
            && completion.wr_id == self.wr_id
            && completion.op == self.op
            && completion.byte_len as usize == self.byte_len
            && completion.immediate.map(u32::from_be_bytes) == self.immediate
            && completion.invalidated == self.invalidated
    }
}

/// A range of the process's region, and its expected contents.
struct Area {
    at: usize,
    image: Vec<u8>,
    /// Nothing was written beyond this.
    used: usize,
}

impl Area {
    fn new(at: usize, len: usize) -> Self {
        Area { at, image: vec![0; len], used: 0 }
    }

    fn expect(&mut self, at: usize, bytes: &[u8]) {
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
        self.used = self.used.max(at + bytes.len());
    }

    /// Compares all bytes that may have been written, and a few beyond.
    fn compare(&self, region: &MemoryRegion, what: &str) -> Result<(), Fault> {
        let len = (self.used + 64).min(self.image.len());
        let found = region.to_vec(self.at, len);
        let Some(first) = found.iter().zip(&self.image).position(|(a, b)| a != b) else {
            return Ok(());
        };
        let wrong = found.iter().zip(&self.image).filter(|(a, b)| a != b).count();
        Err(format!("{what}: {wrong} of {len} bytes are wrong, the first at {first}").into())
    }
}

/// Offsets of a lane's memory in each process's region; the same on both sides.
#[derive(Clone, Copy)]
pub struct Layout {
    shape: Shape,
    base: usize,
}

impl Layout {
    pub fn new(shape: Shape, lane: usize) -> Self {
        Layout { shape, base: lane * Layout::len(shape) }
    }

    /// Bytes of one lane.
    pub fn len(shape: Shape) -> usize {
        6 * shape.arena() + shape.readable() + 64 + 2 * MARK_ROOM
    }

    fn arena(self, number: usize) -> usize {
        self.base + number * self.shape.arena()
    }

    fn source(self) -> usize {
        self.arena(0)
    }

    fn fetched(self) -> usize {
        self.arena(1)
    }

    fn target(self, batch: usize) -> usize {
        self.arena(2 + batch % 2)
    }

    fn inbox(self, batch: usize) -> usize {
        self.arena(4 + batch % 2)
    }

    fn readable(self) -> usize {
        self.arena(6)
    }

    fn word(self) -> usize {
        self.readable() + self.shape.readable()
    }

    fn mark(self, batch: usize) -> usize {
        self.word() + 64 + batch % 2 * MARK_ROOM
    }

    /// Contents of the memory that the side's peers READ.
    fn readable_bytes(self, server: bool) -> Vec<u8> {
        let mut bytes = vec![0; self.shape.readable()];
        fill(self.shape.seed ^ self.base as u64 ^ u64::from(server) << 63, &mut bytes);
        bytes
    }
}

/// Counts of checked operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub messages: u64,
    pub bytes: u64,
    pub invalidated: u64,
    pub atomics: u64,
}

pub struct Lane {
    pub number: usize,
    pub qp: QueuePair,
    server: bool,
    layout: Layout,
    remote: Remote,
    batches: usize,
    batch: usize,
    ours: Vec<Step>,
    theirs: Vec<Step>,
    sent: VecDeque<(Expected, Option<Step>)>,
    received: VecDeque<Expected>,
    /// Receives of the next batch, which the peer has begun.
    early: VecDeque<Completion>,
    targets: [Area; 2],
    inboxes: [Area; 2],
    fetched: Area,
    peer_readable: Vec<u8>,
    /// Value of the peer's word after all posted work.
    pub peer_word: u64,
    /// Regions that the peer invalidates in even and in odd batches, and the key in the peer's
    /// mark.
    lent: [Option<MemoryRegion>; 2],
    borrowed: Option<RKey>,
    pub tally: Tally,
}

impl Lane {
    /// Creates a lane whose queue pair already receives; its first batch is not posted.
    pub fn new(
        number: usize,
        qp: QueuePair,
        server: bool,
        shape: Shape,
        batches: usize,
        region: &MemoryRegion,
    ) -> Result<Self, Fault> {
        let layout = Layout::new(shape, number);
        let arena = shape.arena();
        region.write(layout.base, &vec![0; Layout::len(shape)]);
        region.write(layout.readable(), &layout.readable_bytes(server));
        let lane = Lane {
            number,
            qp,
            server,
            layout,
            remote: Remote { address: 0, rkey: RKey(0) },
            batches,
            batch: 0,
            ours: Vec::new(),
            theirs: Vec::new(),
            sent: VecDeque::new(),
            received: VecDeque::new(),
            early: VecDeque::new(),
            targets: [0, 1].map(|batch| Area::new(layout.target(batch), arena)),
            inboxes: [0, 1].map(|batch| Area::new(layout.inbox(batch), arena)),
            fetched: Area::new(layout.fetched(), arena),
            peer_readable: layout.readable_bytes(!server),
            peer_word: 0,
            lent: [None, None],
            borrowed: None,
            tally: Tally::default(),
        };
        lane.post_receives(0, region)?;
        Ok(lane)
    }

    pub fn is_done(&self) -> bool {
        self.batch >= self.batches
    }

    /// Description for a lane that hangs.
    pub fn describe(&self) -> String {
        format!(
            "lane {} ({:#x}) in batch {}: {} sends missing, the next {:x?}; {} receives, the next \
             {:x?}",
            self.number,
            self.qp.qpn().get(),
            self.batch,
            self.sent.len(),
            self.sent.front().map(|(expected, _)| expected),
            self.received.len(),
            self.received.front()
        )
    }

    /// The word that the peer's atomics change.
    pub fn word(&self, region: &MemoryRegion) -> u64 {
        let mut bytes = [0; 8];
        region.read(self.layout.word(), &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    pub fn begin(
        &mut self,
        remote: Remote,
        pd: &ProtectionDomain,
        region: &MemoryRegion,
    ) -> Result<(), Fault> {
        self.remote = remote;
        self.post_batch(pd, region)
    }

    fn plan(&self, server: bool, batch: usize) -> Vec<Step> {
        match batch < self.batches {
            true => self.layout.shape.batch(self.number, server, batch),
            false => Vec::new(),
        }
    }

    /// Posts receives for everything that the peer sends in a batch, its mark last.
    fn post_receives(&self, batch: usize, region: &MemoryRegion) -> Result<(), Fault> {
        if batch >= self.batches {
            return Ok(());
        }
        for (index, step) in self.plan(!self.server, batch).iter().enumerate() {
            if step.verb.is_send() {
                let at = self.layout.inbox(batch) + step.remote;
                self.qp
                    .post_recv(wr_id(batch, index), &pieces(region, at, step.len, step.pieces))?;
            } else if step.verb.is_received() {
                self.qp.post_recv(wr_id(batch, index), &[])?;
            }
        }
        let mark = [region.piece(self.layout.mark(batch), MARK_LEN as u32)];
        Ok(self.qp.post_recv(mark_id(batch), &mark)?)
    }

    fn post_batch(&mut self, pd: &ProtectionDomain, region: &MemoryRegion) -> Result<(), Fault> {
        let batch = self.batch;
        // Before our mark permits the peer to continue.
        self.post_receives(batch + 1, region)?;
        self.ours = self.plan(self.server, batch);
        self.theirs = self.plan(!self.server, batch);
        self.expect_theirs();
        for index in 0..self.ours.len() {
            self.post_step(index, region)?;
        }
        let asks = |steps: &[Step]| steps.iter().any(|step| step.verb == Verb::SendInvalidate);
        let is_lent = asks(&self.plan(!self.server, batch + 1));
        let lent = &mut self.lent[(batch + 1) % 2];
        *lent = if is_lent { Some(pd.register(64, Access::ALL)?) } else { None };
        let key = lent.as_ref().map_or(0, |region| region.rkey().0);
        let data = [&(batch as u64).to_be_bytes()[..], &key.to_be_bytes()[..]].concat();
        let immediate = Some((batch as u32).to_be_bytes());
        self.qp.post_inline(mark_id(batch), SendOp::Send { immediate, invalidate: None }, &data)?;
        let (wr_id, op, byte_len) = (mark_id(batch), CompletionOp::Send, MARK_LEN);
        self.sent.push_back((
            Expected { wr_id, op, byte_len, immediate: None, invalidated: None },
            None,
        ));
        Ok(())
    }

    /// Sets the expected effects of the peer's batch.
    fn expect_theirs(&mut self) {
        let lent = self.lent[self.batch % 2].as_ref().map(MemoryRegion::rkey);
        for (index, step) in
            self.theirs.iter().enumerate().filter(|(_, step)| step.verb.is_received())
        {
            let (op, immediate) = match step.verb {
                Verb::WriteImmediate(i) => (CompletionOp::RecvWriteImmediate, Some(i)),
                Verb::SendImmediate(i) => (CompletionOp::Recv, Some(i)),
                _ => (CompletionOp::Recv, None),
            };
            let invalidated = if step.verb == Verb::SendInvalidate { lent } else { None };
            let (wr_id, byte_len) = (wr_id(self.batch, index), step.len);
            self.received.push_back(Expected { wr_id, op, byte_len, immediate, invalidated });
        }
        let (wr_id, op, immediate) =
            (mark_id(self.batch), CompletionOp::Recv, Some(self.batch as u32));
        self.received.push_back(Expected {
            wr_id,
            op,
            byte_len: MARK_LEN,
            immediate,
            invalidated: None,
        });
    }

    fn post_step(&mut self, index: usize, region: &MemoryRegion) -> Result<(), Fault> {
        let step = self.ours[index];
        let (batch, rkey) = (self.batch, self.remote.rkey);
        let at = |offset: usize| self.remote.address + offset as u64;
        let immediate = |i: u32| Some(i.to_be_bytes());
        let remote_address = at(self.layout.target(batch) + step.remote);
        let word = at(self.layout.word());
        let (op, completes_as) = match step.verb {
            Verb::Send => (SendOp::Send { immediate: None, invalidate: None }, CompletionOp::Send),
            Verb::SendImmediate(i) => {
                (SendOp::Send { immediate: immediate(i), invalidate: None }, CompletionOp::Send)
            }
            Verb::SendInvalidate => {
                (SendOp::Send { immediate: None, invalidate: self.borrowed }, CompletionOp::Send)
            }
            Verb::Write => {
                (SendOp::Write { remote_address, rkey, immediate: None }, CompletionOp::Write)
            }
            Verb::WriteImmediate(i) => (
                SendOp::Write { remote_address, rkey, immediate: immediate(i) },
                CompletionOp::Write,
            ),
            Verb::Read => {
                let remote_address = at(self.layout.readable() + step.remote);
                (SendOp::Read { remote_address, rkey }, CompletionOp::Read)
            }
            Verb::FetchAdd(add) => {
                (SendOp::FetchAdd { remote_address: word, rkey, add }, CompletionOp::FetchAdd)
            }
            Verb::CompareSwap { is_equal, swap } => {
                let compare = if is_equal { self.peer_word } else { !self.peer_word };
                (
                    SendOp::CmpSwap { remote_address: word, rkey, compare, swap },
                    CompletionOp::CmpSwap,
                )
            }
        };
        let local = if step.verb.fetches() { self.layout.fetched() } else { self.layout.source() };
        match step.verb {
            Verb::Read => {
                let bytes = &self.peer_readable[step.remote..step.remote + step.len];
                self.fetched.expect(step.local, bytes);
            }
            verb if verb.is_atomic() => {
                self.fetched.expect(step.local, &self.peer_word.to_ne_bytes())
            }
            _ => region.write(local + step.local, &data(&step)),
        }
        match step.verb {
            Verb::FetchAdd(add) => self.peer_word = self.peer_word.wrapping_add(add),
            Verb::CompareSwap { is_equal: true, swap } => self.peer_word = swap,
            _ => {}
        }
        let parts = pieces(region, local + step.local, step.len, step.pieces);
        self.qp.post(wr_id(batch, index), op, &parts, step.signaled)?;
        if step.signaled {
            let (wr_id, byte_len) = (wr_id(batch, index), step.len);
            let expected =
                Expected { wr_id, op: completes_as, byte_len, immediate: None, invalidated: None };
            self.sent.push_back((expected, Some(step)));
        }
        Ok(())
    }

    /// Compares a completion with the expected one, and starts the next batch after the last one.
    pub fn take(
        &mut self,
        completion: &Completion,
        pd: &ProtectionDomain,
        region: &MemoryRegion,
    ) -> Result<(), Fault> {
        let is_receive =
            matches!(completion.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate);
        let is_receive = is_receive && completion.status == Status::Success;
        if is_receive && self.received.is_empty() {
            self.early.push_back(*completion);
            return Ok(());
        }
        let expected = match is_receive {
            true => self.received.pop_front(),
            false => self.sent.pop_front().map(|(expected, step)| {
                // The program may reuse the memory: a retransmission from it would send other
                // bytes.
                if let Some(step) = step.filter(|step| !step.verb.fetches()) {
                    region.write(self.layout.source() + step.local, &vec![0xee; step.len]);
                }
                expected
            }),
        };
        if !expected.is_some_and(|expected| expected.is_met_by(completion)) {
            let lane = self.describe();
            return Err(format!("{lane}: {completion:x?}, expected was {expected:x?}").into());
        }
        if self.sent.is_empty() && self.received.is_empty() && !self.is_done() {
            self.compare(region).map_err(|e| format!("{}: {e}", self.describe()))?;
            self.batch += 1;
            if !self.is_done() {
                self.post_batch(pd, region)?;
            }
            let mut early = std::mem::take(&mut self.early).into_iter();
            early.try_for_each(|completion| self.take(&completion, pd, region))?;
        }
        Ok(())
    }

    /// Compares all memory that this batch may have changed.
    fn compare(&mut self, region: &MemoryRegion) -> Result<(), Fault> {
        let parity = self.batch % 2;
        for step in &self.theirs {
            match step.verb {
                verb if verb.is_write() => self.targets[parity].expect(step.remote, &data(step)),
                verb if verb.is_send() => self.inboxes[parity].expect(step.remote, &data(step)),
                _ => {}
            }
        }
        self.targets[parity].compare(region, "what the peer wrote")?;
        self.inboxes[parity].compare(region, "what the peer sent")?;
        self.fetched.compare(region, "what was fetched")?;
        let mut mark = [0; MARK_LEN];
        region.read(self.layout.mark(self.batch), &mut mark);
        let (number, key) = mark.split_at(8);
        if number != (self.batch as u64).to_be_bytes() {
            return Err(format!("a mark says {number:x?}").into());
        }
        let key = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
        self.borrowed = (key != 0).then_some(RKey(key));
        for step in self.ours.iter().chain(&self.theirs) {
            self.tally.messages += 1;
            self.tally.bytes += step.len as u64;
            self.tally.atomics += u64::from(step.verb.is_atomic());
            self.tally.invalidated += u64::from(step.verb == Verb::SendInvalidate);
        }
        Ok(())
    }
}

fn data(step: &Step) -> Vec<u8> {
    let mut data = vec![0; step.len];
    fill(step.pattern, &mut data);
    data
}

fn wr_id(batch: usize, index: usize) -> u64 {
    (batch as u64) << 16 | index as u64
}

fn mark_id(batch: usize) -> u64 {
    wr_id(batch, 0xffff)
}

/// `len` bytes from `from` on, in `count` pieces; none if `len` is 0.
fn pieces(region: &MemoryRegion, from: usize, len: usize, count: usize) -> Vec<Piece> {
    if len == 0 { Vec::new() } else { transfer::pieces(region, from, len, count) }
}
