//! Reference RC requester and responder, as simple as possible, which check all input.

use longhaul_node::{Deadline, Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{Duration, Instant, Msn, Psn, Qpn, RKey, Rng, SplitMix64};
use longhaul_wire::{
    Aeth, Bth, Head, NakCode, Opcode, Packet, Path, PathTemplate, Position, Reth, Syndrome, Verb,
    rnr_timer,
};
use std::collections::VecDeque;

pub const MTU: usize = 256;

/// A work request.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    Send(usize),
    Write(usize),
    Read(usize),
}

/// Byte `i` of message `message`; also the byte that a READ finds at virtual address `message << 32
/// | i`.
pub fn pattern(message: u64, i: usize) -> u8 {
    (message.wrapping_mul(31) as usize + i * 7 + i / 251) as u8
}

struct Request {
    first: u64,
    last: u64,
    work: Work,
    message: u64,
    /// Offset of this packet's payload in the message, and its length.
    offset: usize,
    len: usize,
    ends: bool,
}

/// A QP: requester and responder.
pub struct Peer {
    pub path: Path,
    pub dest_qp: Qpn,
    out: VecDeque<Vec<u8>>,
    requests: Vec<Request>,
    start: u64,
    /// First PSN not acknowledged, and the next to send.
    una: u64,
    next: u64,
    sent_to: u64,
    pub window: u64,
    ack_every: u64,
    timer: Option<Instant>,
    pub timeout: Duration,
    rnr_until: Option<Instant>,
    pub silent_timeouts: u32,
    /// PSN of the last implied NAK acted on: one retry until there is progress or a timeout.
    retried_at: u64,
    pub completed: u64,
    highest_msn: u64,
    read: Vec<u8>,
    pub error: Option<NakCode>,

    pub expected: u64,
    nak_sent: bool,
    msn: u64,
    pub received: Vec<Vec<u8>>,
    assembling: Vec<u8>,
    pub rnr_chance: f64,
    rng: SplitMix64,
}

const BASE: u64 = 1 << 32;

impl Peer {
    pub fn new(path: Path, dest_qp: Qpn, psn: u32, expected_psn: u32, seed: u64) -> Peer {
        let start = BASE + u64::from(psn);
        Peer {
            path,
            dest_qp,
            out: VecDeque::new(),
            requests: Vec::new(),
            start,
            una: start,
            next: start,
            sent_to: start,
            window: 64,
            ack_every: 16,
            timer: None,
            timeout: Duration::from_ms(67),
            rnr_until: None,
            silent_timeouts: 0,
            retried_at: 0,
            completed: 0,
            highest_msn: 0,
            read: Vec::new(),
            error: None,
            expected: BASE + u64::from(expected_psn),
            nak_sent: false,
            msn: 0,
            received: Vec::new(),
            assembling: Vec::new(),
            rnr_chance: 0.0,
            rng: SplitMix64::new(seed),
        }
    }

    pub fn post(&mut self, work: Work) {
        let message = self.requests.last().map_or(0, |r| r.message + 1);
        let first = self.requests.last().map_or(self.start, |r| r.last + 1);
        let (Work::Send(len) | Work::Write(len) | Work::Read(len)) = work;
        let packets = len.div_ceil(MTU).max(1);
        if let Work::Read(len) = work {
            let last = first + packets as u64 - 1;
            self.requests.push(Request { first, last, work, message, offset: 0, len, ends: true });
            return;
        }
        for i in 0..packets {
            let (seq, offset) = (first + i as u64, i * MTU);
            let ends = i + 1 == packets;
            let len = MTU.min(len - offset);
            self.requests.push(Request { first: seq, last: seq, work, message, offset, len, ends });
        }
    }

    pub fn posted(&self) -> u64 {
        self.requests.last().map_or(0, |r| r.message + 1)
    }

    pub fn messages_of(&self, work: impl Fn(Work) -> bool) -> Vec<(u64, usize)> {
        let ends = self.requests.iter().filter(|r| r.ends && work(r.work));
        ends.map(|r| (r.message, r.offset + r.len)).collect()
    }

    fn index_of(&self, seq: u64) -> usize {
        self.requests.partition_point(|r| r.last < seq)
    }

    /// Messages that end before `seq`.
    fn messages_before(&self, seq: u64) -> u64 {
        match self.index_of(seq).checked_sub(1) {
            Some(i) => self.requests[i].message + u64::from(self.requests[i].ends),
            None => 0,
        }
    }

    pub fn send(&mut self, now: Instant) {
        while self.error.is_none() && self.rnr_until.is_none() && self.next < self.una + self.window
        {
            let index = self.index_of(self.next);
            let Some(request) = self.requests.get(index) else { break };
            let skipped = (self.next - request.first) as usize * MTU;
            let (last, bytes) = (request.last, self.build_request(request, skipped));
            self.out.push_back(bytes);
            self.next = last + 1;
            self.sent_to = self.sent_to.max(self.next);
            self.timer.get_or_insert(now + self.timeout);
        }
    }

    fn build_request(&self, request: &Request, skipped: usize) -> Vec<u8> {
        let only = request.offset == 0 && request.ends;
        let place = usize::from(request.offset > 0) + usize::from(request.ends);
        let (first, middle, last, single) = match request.work {
            Work::Send(_) => (0x00, 0x01, 0x02, 0x04),
            Work::Write(_) => (0x06, 0x07, 0x08, 0x0a),
            Work::Read(_) => (0x0c, 0x0c, 0x0c, 0x0c),
        };
        let opcode = match (only, place, request.ends) {
            (true, ..) => single,
            (_, 0, _) => first,
            (_, _, true) => last,
            _ => middle,
        };
        let psn = request.first + (skipped / MTU) as u64;
        let mut bth = Bth::new(Opcode(opcode), self.dest_qp, Psn::from_sequence(psn));
        bth.ack_request = request.ends || psn.is_multiple_of(self.ack_every);
        let template = PathTemplate::new(&self.path);
        let mut head = Head::begin(&template, &bth);
        let (Work::Send(len) | Work::Write(len) | Work::Read(len)) = request.work;
        if bth.opcode.has_reth() {
            let virtual_address = request.message << 32 | skipped as u64;
            head.push_reth(&Reth { virtual_address, rkey: RKey(1), len: (len - skipped) as u32 });
        }
        let payload: Vec<u8> = match request.work {
            Work::Read(_) => Vec::new(),
            _ => (0..request.len).map(|i| pattern(request.message, request.offset + i)).collect(),
        };
        seal(head, &template, &payload)
    }

    fn take_ack(&mut self, now: Instant, packet: &Packet<'_>) {
        let aeth = packet.aeth().expect("an ACK has an AETH");
        let seq = packet.psn().unwrap_near(self.una).expect("far above zero");
        let acked_to = match aeth.syndrome {
            Syndrome::Ack { .. } => seq + 1,
            _ => seq,
        };
        assert!(acked_to <= self.sent_to, "acknowledged PSN {} was never sent", seq - BASE);
        let msn = Msn::new(self.messages_before(acked_to) as u32);
        assert!(
            acked_to < self.una || aeth.msn == msn,
            "MSN {} at PSN {}, not {msn}",
            aeth.msn,
            seq - BASE
        );
        if seq + 1 < self.una {
            return;
        }
        let stopped = self.advance(now, acked_to);
        match aeth.syndrome {
            _ if stopped => self.retry(),
            Syndrome::Ack { .. } => {}
            Syndrome::RnrNak { timer_code } => {
                self.next = self.una;
                self.rnr_until = Some(now + rnr_timer(timer_code));
            }
            Syndrome::Nak(NakCode::PsnSequence) => self.next = self.una,
            Syndrome::Nak(code) => self.error = Some(code),
            Syndrome::Reserved(_) => panic!("reserved syndrome"),
        }
    }

    /// Completes the messages before `acked_to`. Returns `true` if a READ stopped it (implied NAK).
    fn advance(&mut self, now: Instant, acked_to: u64) -> bool {
        let from = self.index_of(self.una);
        let read = self.requests[from..]
            .iter()
            .take_while(|r| r.first < acked_to)
            .find(|r| matches!(r.work, Work::Read(_)))
            .map(|r| r.first.max(self.una));
        let to = read.unwrap_or(acked_to).max(self.una);
        if to > self.una {
            self.una = to;
            self.next = self.next.max(to);
            self.silent_timeouts = 0;
            self.timer = (self.next > self.una).then(|| now + self.timeout);
            self.completed = self.messages_before(self.una);
            assert!(self.completed >= self.highest_msn, "completions go back");
            self.highest_msn = self.completed;
        }
        read.is_some()
    }

    fn retry(&mut self) {
        if self.retried_at != self.una {
            self.retried_at = self.una;
            self.next = self.una;
        }
    }

    fn take_read_response(&mut self, now: Instant, packet: &Packet<'_>, payload: &[u8]) {
        let seq = packet.psn().unwrap_near(self.una).expect("far above zero");
        if seq < self.una || seq >= self.next {
            return;
        }
        let first = self.requests[self.index_of(seq)].first;
        if self.advance(now, first) || seq != self.una {
            // A packet before it is missing.
            self.retry();
            return;
        }
        let request = &self.requests[self.index_of(seq)];
        let Work::Read(len) = request.work else { panic!("READ response for {:?}", request.work) };
        let offset = (seq - request.first) as usize * MTU;
        let (message, last) = (request.message, request.last);
        if offset == 0 {
            self.read.clear();
        }
        assert_eq!(self.read.len(), offset, "READ data has no holes");
        assert_eq!(payload.len(), MTU.min(len - offset));
        for (i, &byte) in payload.iter().enumerate() {
            assert_eq!(byte, pattern(message, offset + i), "READ data");
        }
        self.read.extend_from_slice(payload);
        self.una = seq + 1;
        self.next = self.next.max(self.una);
        self.silent_timeouts = 0;
        self.timer = (self.next > self.una).then(|| now + self.timeout);
        if seq == last {
            self.completed = message + 1;
            self.highest_msn = self.completed;
        }
    }

    fn respond(&mut self, packet: &Packet<'_>, payload: &[u8]) {
        let seq = packet.psn().unwrap_near(self.expected).expect("far above zero");
        let verb = packet.opcode().verb();
        if seq > self.expected {
            if !self.nak_sent {
                self.nak_sent = true;
                self.answer(self.expected, Syndrome::Nak(NakCode::PsnSequence));
            }
            return;
        }
        let duplicate = seq < self.expected;
        if verb == Some(Verb::ReadRequest) {
            let reth = packet.reth().expect("RETH");
            let span = (reth.len as usize).div_ceil(MTU).max(1) as u64;
            if !duplicate {
                self.nak_sent = false;
                self.expected += span;
                self.msn += 1;
            }
            self.answer_read(seq, span, &reth);
            return;
        }
        if duplicate {
            self.answer(self.expected - 1, Syndrome::ACK_UNLIMITED);
            return;
        }
        if verb == Some(Verb::Send) && self.rng.chance(self.rnr_chance) {
            self.nak_sent = false;
            self.answer(self.expected, Syndrome::RnrNak { timer_code: 12 });
            return;
        }
        self.nak_sent = false;
        self.expected += 1;
        if matches!(packet.opcode().position(), Position::First | Position::Only) {
            assert!(self.assembling.is_empty(), "a message begins inside another");
        }
        self.assembling.extend_from_slice(payload);
        if packet.opcode().ends_message() {
            self.msn += 1;
            self.received.push(std::mem::take(&mut self.assembling));
        }
        if packet.bth().ack_request {
            self.answer(seq, Syndrome::ACK_UNLIMITED);
        }
    }

    fn answer(&mut self, seq: u64, syndrome: Syndrome) {
        let bth = Bth::new(Opcode::RC_ACK, self.dest_qp, Psn::from_sequence(seq));
        let template = PathTemplate::new(&self.path);
        let mut head = Head::begin(&template, &bth);
        head.push_aeth(&Aeth { syndrome, msn: Msn::new(self.msn as u32) });
        self.out.push_back(seal(head, &template, &[]));
    }

    fn answer_read(&mut self, seq: u64, span: u64, reth: &Reth) {
        for i in 0..span {
            let opcode = match (span, i) {
                (1, _) => Opcode::RC_READ_RESPONSE_ONLY,
                (_, 0) => Opcode::RC_READ_RESPONSE_FIRST,
                (n, i) if i + 1 == n => Opcode::RC_READ_RESPONSE_LAST,
                _ => Opcode::RC_READ_RESPONSE_MIDDLE,
            };
            let bth = Bth::new(opcode, self.dest_qp, Psn::from_sequence(seq + i));
            let template = PathTemplate::new(&self.path);
            let mut head = Head::begin(&template, &bth);
            if opcode.has_aeth() {
                head.push_aeth(&Aeth {
                    syndrome: Syndrome::ACK_UNLIMITED,
                    msn: Msn::new(self.msn as u32),
                });
            }
            let from = i as usize * MTU;
            let message = reth.virtual_address >> 32;
            let skipped = reth.virtual_address as u32 as usize;
            let payload: Vec<u8> = (from..(from + MTU).min(reth.len as usize))
                .map(|i| pattern(message, skipped + i))
                .collect();
            self.out.push_back(seal(head, &template, &payload));
        }
    }
}

impl Node for Peer {
    fn handle_frame(&mut self, now: Instant, _side: Side, frame: &Frame<'_>) {
        if !frame.icrc_is_right() {
            return;
        }
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return };
        let payload = frame.payload.as_bytes().unwrap_or(&[]);
        match packet.opcode().verb() {
            Some(Verb::Acknowledge) => self.take_ack(now, &packet),
            Some(Verb::ReadResponse) => self.take_read_response(now, &packet, payload),
            Some(_) => self.respond(&packet, payload),
            None => {}
        }
        self.send(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.rnr_until.is_some_and(|at| at <= now) {
            self.rnr_until = None;
        }
        if self.timer.is_some_and(|at| at <= now) {
            self.silent_timeouts += 1;
            self.next = self.una;
            self.timer = None;
            self.retried_at = 0;
        }
        self.send(now);
    }

    fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
        for bytes in self.out.drain(..) {
            let head = Head::copy_of(&bytes);
            out.transmit(0, &Frame::received(&head, &bytes).expect("whole"));
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let at = [self.timer, self.rnr_until].into_iter().flatten().min()?;
        Some(Deadline { at, reason: "timer" })
    }
}

fn seal(mut head: Head, template: &PathTemplate, payload: &[u8]) -> Vec<u8> {
    let pad_len = head.finish(template, payload.len());
    let frame = Frame {
        head: head.bytes(),
        payload: Payload::Bytes(payload),
        trailer: Trailer::Sealed { pad_len },
    };
    let mut bytes = vec![0; frame.len()];
    frame.write_to(&mut bytes);
    bytes
}
