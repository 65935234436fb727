//! The reference: the objects, the work posted, and the completions and memory contents that are
//! possible or required.
//!
//! It does not model packets. Every rule for the devices is an assertion here.

use crate::pair::{BASE, VecMemory, ip};
use longhaul_rnic::*;
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

pub const SLOTS: usize = 96;
pub const SLOT_LEN: usize = 8192;
/// Length of the constant source bytes of messages, which precede the slots.
pub const SOURCE_LEN: usize = 32 * 1024;
pub const MEMORY_LEN: usize = SOURCE_LEN + SLOTS * SLOT_LEN;
/// Bytes before a datagram.
pub const GRH: usize = 40;

/// Offset of a slot in memory.
pub fn slot_at(slot: usize) -> usize {
    SOURCE_LEN + slot * SLOT_LEN
}

/// Permitted changes of a slot that may be written to.
#[derive(Clone, Debug)]
pub enum Allowed {
    /// Anything in the first bytes.
    Any(usize),
    /// Each byte is unchanged or equals this message's.
    Mix(Vec<u8>),
    /// A word with one of these values.
    Cell(VecDeque<u64>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    None,
    /// Written at the peer.
    Write {
        node: usize,
        slot: usize,
    },
    /// Read into this slot.
    Read {
        slot: usize,
    },
    /// The value that an atomic must return.
    Atomic {
        slot: usize,
        original: u64,
    },
}

/// A message that was posted.
#[derive(Clone, Debug)]
pub struct Message {
    pub from: usize,
    pub from_qpn: u32,
    pub to: Where,
    pub data: Vec<u8>,
    pub op: CompletionOp,
    pub immediate: Option<[u8; 4]>,
    pub invalidate: bool,
    pub solicited: bool,
    pub written: Option<(usize, usize)>,
    pub deliveries: u32,
    /// No receiver may ever get it.
    pub undeliverable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    Qp(usize, u32),
    Group(IpAddr),
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub wr_id: u64,
    pub op: CompletionOp,
    pub len: u32,
    pub signaled: bool,
    pub target: Target,
    pub data: Vec<u8>,
    /// The only status that it may complete with, apart from a flush.
    pub must_fail: Option<Status>,
    /// Keys that it uses at both ends.
    pub keys: [Option<(usize, u32)>; 2],
}

#[derive(Clone, Debug)]
pub struct Posted {
    pub wr_id: u64,
    pub slot: usize,
    /// Its key is wrong.
    pub bad: bool,
    pub lkey: u32,
}

pub struct Cq {
    pub capacity: u32,
    pub users: u32,
    pub armed: bool,
    /// A completion was lost.
    pub lost: bool,
    pub newest: Instant,
}

pub struct Srq {
    pub pd: u32,
    pub depth: u32,
    pub users: u32,
    pub limit: u32,
    pub tainted: bool,
    pub posted: BTreeMap<u64, Posted>,
    /// Receives that destroyed QPs may have taken.
    pub carried_off: u32,
}

pub struct Mr {
    pub pd: u32,
    pub access: Access,
    /// A slot, or `None` for all memory.
    pub slot: Option<usize>,
    /// A peer was asked to invalidate it, and may have done so.
    pub invalidating: bool,
    /// A completion has reported its invalidation.
    pub invalidated: bool,
}

pub struct Ah {
    pub pd: u32,
    pub to: IpAddr,
}

pub struct Qp {
    pub kind: QpKind,
    pub pd: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: Option<u32>,
    pub sq_depth: usize,
    pub rq_depth: usize,
    pub state: QpState,
    pub peer: Option<(usize, u32)>,
    pub qkey: u32,
    pub retries_for_ever: bool,
    /// READs and atomics that may be outstanding.
    pub reads: u8,
    pub sends: VecDeque<Sent>,
    pub receives: VecDeque<Posted>,
    /// Messages from the peer that will consume receives, in order.
    pub incoming: VecDeque<usize>,
    pub send_failed: bool,
    /// Time at which its send queue was last seen in error.
    pub failed_at: Instant,
    /// An action may make it fail; in an unreliable QP only its sends.
    pub tainted: bool,
    /// An action on its receives may make it fail.
    pub receives_tainted: bool,
    pub peer_gone: bool,
    /// A word at the peer that only this QP uses, and its value after all posted work.
    pub cell: Option<(usize, u64)>,
    pub drain_asked: bool,
}

#[derive(Default)]
pub struct Host {
    pub pds: BTreeMap<u32, u32>,
    pub cqs: BTreeMap<u32, Cq>,
    pub srqs: BTreeMap<u32, Srq>,
    pub mrs: BTreeMap<u32, Mr>,
    pub ahs: BTreeMap<u32, Ah>,
    pub qps: BTreeMap<u32, Qp>,
    pub groups: BTreeMap<IpAddr, BTreeSet<u32>>,
    pub slots: Vec<Option<Allowed>>,
    pub shadow: Vec<u8>,
}

pub struct Model {
    pub hosts: Vec<Host>,
    pub messages: Vec<Message>,
    pub lossy: bool,
    pub duplicating: bool,
    pub life: Duration,
    /// Slots that frames in flight may still write to.
    zombies: Vec<(Instant, usize, usize)>,
    /// Time from which no old frame can reach a QPN.
    pub quiet_from: BTreeMap<(usize, u32), Instant>,
    pub completions: u64,
    pub successes: u64,
    /// Messages received by UC and UD QPs whose send queue was in error.
    pub received_in_sqe: [u64; 2],
}

impl Model {
    pub fn new(seed: u64, count: usize, lossy: bool, duplicating: bool, life: Duration) -> Self {
        let host = |n: usize| {
            let mut rng = SplitMix64::new(seed ^ n as u64);
            let shadow = (0..MEMORY_LEN).map(|_| rng.next_u64() as u8).collect();
            Host { slots: vec![None; SLOTS], shadow, ..Host::default() }
        };
        Model {
            hosts: (0..count).map(host).collect(),
            messages: Vec::new(),
            lossy,
            duplicating,
            life,
            zombies: Vec::new(),
            quiet_from: BTreeMap::new(),
            completions: 0,
            successes: 0,
            received_in_sqe: [0; 2],
        }
    }

    pub fn qp(&mut self, n: usize, qpn: u32) -> &mut Qp {
        self.hosts[n].qps.get_mut(&qpn).expect("the model knows it")
    }

    /// A slot that may not be written to.
    pub fn free_slot(&self, n: usize, rng: &mut impl Rng) -> Option<usize> {
        let start = rng.below(SLOTS as u64) as usize;
        (0..SLOTS).map(|i| (start + i) % SLOTS).find(|&slot| {
            let hosts = &self.hosts[n];
            hosts.slots[slot].is_none() && !hosts.mrs.values().any(|mr| mr.slot == Some(slot))
        })
    }

    /// The unused slot of `mr`, if it has one of its own.
    pub fn slot_of(&self, n: usize, mr: u32, rng: &mut impl Rng) -> Option<usize> {
        match self.hosts[n].mrs[&mr].slot {
            Some(slot) => self.hosts[n].slots[slot].is_none().then_some(slot),
            None => self.free_slot(n, rng),
        }
    }

    /// Checks a slot against its permitted changes, and accepts its contents.
    pub fn release(&mut self, n: usize, slot: usize, memory: &VecMemory) {
        self.check_slot(n, slot, memory);
        self.hosts[n].slots[slot] = None;
        let at = slot_at(slot);
        self.hosts[n].shadow[at..at + SLOT_LEN].copy_from_slice(&memory.0[at..at + SLOT_LEN]);
    }

    fn check_slot(&self, n: usize, slot: usize, memory: &VecMemory) {
        let at = slot_at(slot);
        let (is, was) = (&memory.0[at..at + SLOT_LEN], &self.hosts[n].shadow[at..at + SLOT_LEN]);
        let rest = match &self.hosts[n].slots[slot] {
            None => 0,
            Some(Allowed::Any(len)) => *len,
            Some(Allowed::Mix(data)) => {
                for (i, new) in data.iter().enumerate() {
                    assert!(
                        is[i] == was[i] || is[i] == *new,
                        "node {n} slot {slot} byte {i} is from nowhere"
                    );
                }
                data.len()
            }
            Some(Allowed::Cell(values)) => {
                let word = memory.word(BASE + at as u64);
                assert!(
                    values.contains(&word),
                    "node {n} slot {slot}: {word:#x} is none of {values:x?}"
                );
                8
            }
        };
        assert!(is[rest..] == was[rest..], "node {n} slot {slot} was written to beyond {rest}");
    }

    /// Checks all memory against its permitted changes.
    pub fn check_memory(&self, n: usize, memory: &VecMemory) {
        assert!(
            memory.0[..SOURCE_LEN] == self.hosts[n].shadow[..SOURCE_LEN],
            "node {n}: a source has changed"
        );
        (0..SLOTS).for_each(|slot| self.check_slot(n, slot, memory));
    }

    /// Slots that no frame in flight can write to any more.
    pub fn due_zombies(&mut self, now: Instant) -> Vec<(usize, usize)> {
        let due = self.zombies.iter().filter(|z| z.0 <= now).map(|z| (z.1, z.2)).collect();
        self.zombies.retain(|z| z.0 > now);
        due
    }

    pub fn make_zombie(&mut self, now: Instant, n: usize, slot: usize) {
        self.zombies.push((now + self.life, n, slot));
    }

    /// Forbids further writes through this key: memory covered by it alone must not change.
    pub fn freeze(&mut self, n: usize, slot: usize, memory: &VecMemory) {
        if self.hosts[n].slots[slot].is_some() {
            self.check_slot(n, slot, memory);
            let at = slot_at(slot);
            self.hosts[n].shadow[at..at + SLOT_LEN].copy_from_slice(&memory.0[at..at + SLOT_LEN]);
            self.hosts[n].slots[slot] = Some(Allowed::Any(0));
        }
    }

    /// A key was removed: its users may fail.
    pub fn taint_users_of(&mut self, n: usize, key: u32) {
        let mut hit = Vec::new();
        for (m, host) in self.hosts.iter_mut().enumerate() {
            for (&qpn, qp) in &host.qps {
                let sends = qp.sends.iter().any(|s| s.keys.contains(&Some((n, key))));
                let receives = m == n && qp.receives.iter().any(|r| r.lkey == key);
                if sends || receives {
                    hit.push((m, qpn, sends, receives));
                }
            }
            if m == n {
                for srq in host.srqs.values_mut() {
                    srq.tainted |= srq.posted.values().any(|r| r.lkey == key);
                }
            }
        }
        for (m, qpn, sends, receives) in hit {
            if sends {
                self.taint(m, qpn);
            }
            if receives {
                self.taint_receives(m, qpn);
            }
        }
    }

    /// Notes that a QP's sends may fail; in a reliable QP, its receives and its peer with them.
    pub fn taint(&mut self, n: usize, qpn: u32) {
        self.qp(n, qpn).tainted = true;
        self.taint_peer(n, qpn);
    }

    /// Notes that a QP may fail as a receiver, and a reliable one's peer with it.
    pub fn taint_receives(&mut self, n: usize, qpn: u32) {
        self.qp(n, qpn).receives_tainted = true;
        self.taint_peer(n, qpn);
    }

    fn taint_peer(&mut self, n: usize, qpn: u32) {
        if self.qp(n, qpn).kind == QpKind::Rc
            && let Some((m, peer)) = self.qp(n, qpn).peer
            && let Some(peer) = self.hosts[m].qps.get_mut(&peer)
            && peer.peer == Some((n, qpn))
        {
            peer.tainted = true;
        }
    }

    /// Whether a QP may fail as a receiver.
    fn receives_are_spoilt(&self, n: usize, qp: &Qp) -> bool {
        let host = &self.hosts[n];
        qp.receives_tainted
            || host.cqs[&qp.send_cq].lost
            || host.cqs[&qp.recv_cq].lost
            || qp.srq.is_some_and(|srq| host.srqs[&srq].tainted)
    }

    fn is_spoilt(&self, n: usize, qp: &Qp) -> bool {
        qp.tainted || self.receives_are_spoilt(n, qp)
    }

    /// Whether an action on a reliable QP or its peer permits any failure.
    fn is_excused(&self, n: usize, qpn: u32) -> bool {
        let Some(qp) = self.hosts[n].qps.get(&qpn) else { return true };
        let spoilt_there = qp.peer.is_some_and(|(m, peer)| {
            self.hosts[m]
                .qps
                .get(&peer)
                .is_none_or(|other| other.peer != Some((n, qpn)) || self.is_spoilt(m, other))
        });
        qp.peer_gone || self.is_spoilt(n, qp) || spoilt_there
    }

    /// Whether only the send queue of a QP may fail.
    pub fn sends_may_fail(&self, n: usize, qpn: u32) -> bool {
        self.hosts[n].qps.get(&qpn).is_none_or(|qp| qp.kind != QpKind::Rc && qp.tainted)
    }

    /// Whether a QP may enter the error state: for lack of answers or receives, too. An unreliable
    /// QP does so only as a receiver.
    pub fn may_fail(&self, n: usize, qpn: u32) -> bool {
        let Some(qp) = self.hosts[n].qps.get(&qpn) else { return true };
        if qp.kind != QpKind::Rc {
            return self.receives_are_spoilt(n, qp);
        }
        let Some((m, peer)) = qp.peer else { return self.is_excused(n, qpn) };
        let peer_failed =
            self.hosts[m].qps.get(&peer).is_none_or(|other| other.state == QpState::Error);
        peer_failed || self.lossy || !qp.retries_for_ever || self.is_excused(n, qpn)
    }

    pub fn complete(
        &mut self,
        n: usize,
        cq: u32,
        c: &Completion,
        now: Instant,
        memories: &[&VecMemory],
    ) {
        self.completions += 1;
        self.successes += u64::from(c.status == Status::Success);
        let queue = self.hosts[n].cqs.get_mut(&cq).expect("a CQ that exists");
        assert!(
            c.timestamp >= queue.newest && c.timestamp <= now,
            "{c:?} is older than {:?}",
            queue.newest
        );
        queue.newest = c.timestamp;
        let qpn = c.qpn.get();
        let qp = self.hosts[n].qps.get(&qpn).unwrap_or_else(|| panic!("{c:?} of an unknown QP"));
        let is_receive = matches!(c.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate);
        let expected_cq = if is_receive { qp.recv_cq } else { qp.send_cq };
        assert_eq!(cq, expected_cq, "{c:?}");
        if is_receive {
            self.complete_receive(n, qpn, c, memories);
        } else {
            self.complete_send(n, qpn, c, now, memories);
        }
    }

    fn complete_send(
        &mut self,
        n: usize,
        qpn: u32,
        c: &Completion,
        now: Instant,
        memories: &[&VecMemory],
    ) {
        let may_fail = self.may_fail(n, qpn);
        let is_excused = match self.hosts[n].qps[&qpn].kind {
            QpKind::Rc => self.is_excused(n, qpn),
            QpKind::Uc | QpKind::Ud => self.sends_may_fail(n, qpn),
        };
        let lost = self.hosts[n].cqs[&self.hosts[n].qps[&qpn].send_cq].lost;
        let sent = loop {
            let qp = self.qp(n, qpn);
            let sent = qp
                .sends
                .pop_front()
                .unwrap_or_else(|| panic!("{c:?} was never posted, or completed twice"));
            if sent.wr_id == c.wr_id {
                break sent;
            }
            assert!(
                lost || (!sent.signaled && !qp.send_failed),
                "{sent:?} has no completion, but {c:?}"
            );
            self.end_send(n, qpn, &sent, !lost, now, memories);
        };
        assert_eq!(c.op, sent.op);
        let (lossy, qp) = (self.lossy, self.qp(n, qpn));
        let failed_before = qp.send_failed;
        match c.status {
            Status::Success => {
                assert!(!failed_before, "{c:?} after a failure");
                assert!(sent.signaled, "{c:?} was not asked for");
                assert_eq!(c.byte_len, sent.len, "{c:?}");
                assert_eq!(sent.must_fail, None, "{c:?} {sent:?}");
            }
            Status::WrFlush => {
                let in_error = matches!(qp.state, QpState::Error | QpState::SendQueueError);
                assert!(may_fail || in_error, "{c:?} of a sound QP");
                qp.send_failed = true;
            }
            status => {
                assert!(!failed_before, "{c:?}: a second failure");
                let by_chance = match status {
                    Status::RetryExceeded => qp.kind == QpKind::Rc && (lossy || may_fail),
                    Status::RnrRetryExceeded => !qp.retries_for_ever,
                    Status::LocalQpOperation => false,
                    _ => is_excused,
                };
                assert!(by_chance || sent.must_fail == Some(status), "{c:?} of {sent:?}");
                qp.send_failed = true;
            }
        }
        self.end_send(n, qpn, &sent, c.status == Status::Success, now, memories);
    }

    /// Checks memory after a completed send, and releases its slots.
    fn end_send(
        &mut self,
        n: usize,
        qpn: u32,
        sent: &Sent,
        succeeded: bool,
        now: Instant,
        memories: &[&VecMemory],
    ) {
        let is_reliable = self.hosts[n].qps[&qpn].kind == QpKind::Rc;
        if succeeded {
            assert_eq!(sent.must_fail, None, "{sent:?} succeeded");
        }
        let equals = |m: usize, slot: usize| {
            let at = slot_at(slot);
            memories[m].0[at..at + sent.data.len()] == sent.data[..]
        };
        match sent.target {
            Target::None => {}
            Target::Write { node, slot } if is_reliable && succeeded => {
                assert!(
                    self.is_frozen(node, slot) || equals(node, slot),
                    "{sent:?} wrote something else"
                );
                self.release(node, slot, memories[node]);
            }
            Target::Write { node, slot } => self.make_zombie(now, node, slot),
            Target::Read { slot } => {
                assert!(
                    !succeeded || self.is_frozen(n, slot) || equals(n, slot),
                    "{sent:?} read something else"
                );
                self.release(n, slot, memories[n]);
            }
            Target::Atomic { slot, original } => {
                if succeeded && !self.is_frozen(n, slot) {
                    let found = memories[n].word(BASE + slot_at(slot) as u64);
                    assert_eq!(found, original, "{sent:?} executed at another time, or twice");
                }
                self.release(n, slot, memories[n]);
                self.forget_cell_value(n, qpn, succeeded);
            }
        }
    }

    fn is_frozen(&self, n: usize, slot: usize) -> bool {
        matches!(self.hosts[n].slots[slot], Some(Allowed::Any(0)))
    }

    /// An atomic was executed: the word has changed.
    fn forget_cell_value(&mut self, n: usize, qpn: u32, succeeded: bool) {
        let qp = self.qp(n, qpn);
        if let (Some((slot, _)), Some((m, _)), true) = (qp.cell, qp.peer, succeeded)
            && let Some(Allowed::Cell(values)) = &mut self.hosts[m].slots[slot]
        {
            values.pop_front();
        }
    }

    fn complete_receive(&mut self, n: usize, qpn: u32, c: &Completion, memories: &[&VecMemory]) {
        let may_fail = self.may_fail(n, qpn);
        let host = &mut self.hosts[n];
        let qp = host.qps.get_mut(&qpn).expect("it was looked up");
        let lost = host.cqs[&qp.recv_cq].lost;
        let receive = match qp.srq {
            Some(srq) => {
                let srq = host.srqs.get_mut(&srq).expect("an SRQ in use");
                srq.posted
                    .remove(&c.wr_id)
                    .unwrap_or_else(|| panic!("{c:?} was never posted to the SRQ"))
            }
            None => loop {
                let receive =
                    qp.receives.pop_front().unwrap_or_else(|| panic!("{c:?} was never posted"));
                if receive.wr_id == c.wr_id {
                    break receive;
                }
                assert!(lost, "{receive:?} has no completion, but {c:?}");
                host.slots[receive.slot] = Some(Allowed::Any(SLOT_LEN));
                self.zombies.push((Instant::ZERO, n, receive.slot));
            },
        };
        let kind = qp.kind;
        match c.status {
            Status::Success => {
                assert!(
                    !receive.bad || (c.op == CompletionOp::RecvWriteImmediate || c.byte_len == 0),
                    "{c:?}"
                );
                let message = self.find_message(n, qpn, kind, c, &receive, memories);
                self.messages[message].deliveries += 1;
                let qp = self.qp(n, qpn);
                if qp.state == QpState::SendQueueError && c.timestamp > qp.failed_at {
                    self.received_in_sqe[usize::from(kind == QpKind::Ud)] += 1;
                }
                if let Some(mr) = c.invalidated.and_then(|rkey| self.hosts[n].mrs.get_mut(&rkey.0))
                {
                    mr.invalidated = true;
                }
            }
            Status::WrFlush => {
                assert!(may_fail || self.qp(n, qpn).state == QpState::Error, "{c:?} of a sound QP");
            }
            _ if kind == QpKind::Rc => assert!(self.is_excused(n, qpn), "{c:?} of a sound QP"),
            _ => assert!(may_fail, "{c:?} of a sound receiver"),
        }
        if c.status == Status::Success && kind == QpKind::Rc {
            let written = if c.op == CompletionOp::Recv { c.byte_len as usize } else { 0 };
            if !self.is_frozen(n, receive.slot) {
                self.hosts[n].slots[receive.slot] = Some(Allowed::Any(written));
            }
        }
        self.release(n, receive.slot, memories[n]);
    }

    /// Finds the message that consumed a receive.
    fn find_message(
        &mut self,
        n: usize,
        qpn: u32,
        kind: QpKind,
        c: &Completion,
        receive: &Posted,
        memories: &[&VecMemory],
    ) -> usize {
        let lost = self.hosts[n].cqs[&self.hosts[n].qps[&qpn].recv_cq].lost;
        if kind == QpKind::Rc {
            loop {
                let Some(next) = self.qp(n, qpn).incoming.pop_front() else {
                    panic!("{c:?}: nothing was sent")
                };
                let matches = self.matches(next, n, qpn, kind, c, receive, memories);
                assert!(matches || lost, "{c:?} is not {:?}", self.messages[next]);
                if matches {
                    return next;
                }
            }
        }
        let limit = if self.duplicating { u32::MAX } else { 1 };
        let found = (0..self.messages.len()).find(|&i| {
            let once = match self.messages[i].to {
                Where::Qp(..) => self.messages[i].deliveries < limit,
                Where::Group(_) => true,
            };
            once && self.matches(i, n, qpn, kind, c, receive, memories)
        });
        found.unwrap_or_else(|| {
            panic!("node {n}: nobody sent what came with {c:?}, or not so often")
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one question about two things")]
    fn matches(
        &self,
        message: usize,
        n: usize,
        qpn: u32,
        kind: QpKind,
        c: &Completion,
        receive: &Posted,
        memories: &[&VecMemory],
    ) -> bool {
        let m = &self.messages[message];
        let is_here = match m.to {
            Where::Qp(node, to) => (node, to) == (n, qpn),
            Where::Group(_) => kind == QpKind::Ud && m.from != n,
        };
        let op = if m.op == CompletionOp::Write {
            CompletionOp::RecvWriteImmediate
        } else {
            CompletionOp::Recv
        };
        let front = if kind == QpKind::Ud { GRH } else { 0 };
        if !is_here
            || m.undeliverable
            || op != c.op
            || m.immediate != c.immediate
            || m.invalidate != c.invalidated.is_some()
            || m.solicited != c.solicited
            || m.data.len() + front != c.byte_len as usize
            || m.from_qpn != c.peer_qpn.get()
            || c.grh.is_some() != (kind == QpKind::Ud)
        {
            return false;
        }
        let (node, slot) = m.written.unwrap_or((n, receive.slot));
        let at = slot_at(slot);
        if kind == QpKind::Ud {
            let IpAddr::V4(from) = ip(m.from) else { return false };
            if memories[n].0[at + 32..at + 36] != from.octets() {
                return false;
            }
        }
        // A written message may have changed since, if another owner has its slot.
        let is_still_there = m.written.is_none() && !self.is_frozen(node, slot);
        !is_still_there || memories[node].0[at + front..at + front + m.data.len()] == m.data[..]
    }

    /// A send queue leaves its error state, and all its flushes have been reported.
    pub fn recover(&mut self, n: usize, qpn: u32) {
        let lost = self.hosts[n].cqs[&self.hosts[n].qps[&qpn].send_cq].lost;
        let qp = self.qp(n, qpn);
        let waiting: Vec<_> = qp.sends.iter().map(|sent| sent.wr_id).collect();
        assert!(lost || waiting.is_empty(), "not flushed: {waiting:?}");
        qp.send_failed = false;
        qp.tainted = false;
        qp.drain_asked = false;
    }

    /// A QP's work is discarded with it.
    pub fn forget_work(&mut self, n: usize, qpn: u32, now: Instant, memories: &[&VecMemory]) {
        let life = self.life;
        let qp = self.qp(n, qpn);
        let (sends, receives) = (std::mem::take(&mut qp.sends), std::mem::take(&mut qp.receives));
        let (peer, cell, srq) = (qp.peer.take(), qp.cell.take(), qp.srq);
        qp.incoming.clear();
        qp.send_failed = false;
        qp.tainted = false;
        qp.receives_tainted = false;
        qp.peer_gone = false;
        qp.drain_asked = false;
        for sent in &sends {
            match sent.target {
                Target::None => {}
                Target::Write { node, slot } => self.make_zombie(now, node, slot),
                Target::Read { slot } | Target::Atomic { slot, .. } => {
                    self.release(n, slot, memories[n])
                }
            }
        }
        for receive in &receives {
            self.release(n, receive.slot, memories[n]);
        }
        if let Some(srq) = srq {
            self.hosts[n].srqs.get_mut(&srq).expect("an SRQ in use").carried_off += 1;
        }
        if let Some((m, peer_qpn)) = peer {
            self.quiet_from.insert((m, peer_qpn), now + life);
            self.quiet_from.insert((n, qpn), now + life);
            if let Some((slot, _)) = cell {
                self.make_zombie(now, m, slot);
            }
            if let Some(other) = self.hosts[m].qps.get_mut(&peer_qpn)
                && other.peer == Some((n, qpn))
            {
                other.peer_gone = true;
            }
        }
    }

    /// Whether a QPN may be connected: no other QP sends to it.
    pub fn is_quiet(&self, n: usize, qpn: u32, now: Instant) -> bool {
        let spoken_to =
            self.hosts.iter().any(|h| h.qps.values().any(|qp| qp.peer == Some((n, qpn))));
        !spoken_to && self.quiet_from.get(&(n, qpn)).is_none_or(|&from| from <= now)
    }

    /// The MR that covers all memory of a PD.
    pub fn main_mr(&self, n: usize, pd: u32) -> Option<u32> {
        self.hosts[n]
            .mrs
            .iter()
            .find(|(_, mr)| mr.pd == pd && mr.slot.is_none())
            .map(|(&key, _)| key)
    }
}
