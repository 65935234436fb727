//! A requester and a responder over a channel that loses, duplicates and reorders: every operation
//! is executed exactly once and in order.

use crate::script::{Device, KEY, device, template};
use longhaul_node::{Frame, Payload};
use longhaul_rc::*;
use longhaul_units::{Duration, Instant, LKey, Psn, Qpn, RKey, Rng as _, SplitMix64};
use longhaul_wire::{Opcode, Packet, Verb};
use longhaul_work::*;
use proptest::prelude::*;

/// Words used by atomics and some WRITEs, at the beginning of the far memory.
const WORDS: u64 = 4;
/// Addresses of the far side's read-only bytes and of its receives.
const FIXED: u64 = 4096;
const RECEIVES: u64 = 500_000;
/// Bytes of local memory for each operation: its source or its result.
const STRIDE: u64 = 1024;
const OPERATIONS_MAX: usize = 60;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Add { word: u64, value: u64 },
    Swap { word: u64, compare: u64, value: u64 },
    WriteWord { word: u64, value: u64 },
    ReadWord { word: u64 },
    Read { at: u64, len: u32 },
    Send { len: u32, immediate: bool },
    WriteImmediate,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    kind: Kind,
    fence: bool,
}

#[derive(Clone, Debug)]
struct Plan {
    operations: Vec<Operation>,
    seed: u64,
    first_psn: u32,
    max_rd_atomic: u32,
    window_packets: u32,
    probe_above: u32,
    /// Per 100 packets: the number lost, duplicated, delayed.
    loses: u64,
    repeats: u64,
    delays: u64,
    report_credits: bool,
    asks_at_window_end: bool,
}

fn kinds() -> impl Strategy<Value = Kind> {
    let word = 0..WORDS;
    prop_oneof![
        4 => (word.clone(), 0..3u64).prop_map(|(word, value)| Kind::Add { word, value }),
        4 => (word.clone(), 0..3u64, 0..3u64)
            .prop_map(|(word, compare, value)| Kind::Swap { word, compare, value }),
        2 => (word.clone(), 0..3u64).prop_map(|(word, value)| Kind::WriteWord { word, value }),
        2 => word.prop_map(|word| Kind::ReadWord { word }),
        3 => (0..500u64, 0..1000u32).prop_map(|(at, len)| Kind::Read { at, len }),
        2 => (0..1000u32, any::<bool>()).prop_map(|(len, immediate)| Kind::Send { len, immediate }),
        1 => Just(Kind::WriteImmediate),
    ]
}

fn plans() -> impl Strategy<Value = Plan> {
    let operation =
        (kinds(), prop::bool::weighted(0.2)).prop_map(|(kind, fence)| Operation { kind, fence });
    (
        prop::collection::vec(operation, 1..OPERATIONS_MAX),
        any::<u64>(),
        prop_oneof![Just(0), Just(0xff_fff0), 0..1u32 << 24],
        1..5u32,
        (1..20u32, prop_oneof![0..8u32, Just(PROBE_ABOVE)]),
        (0..30u64, 0..30u64, 0..30u64),
        any::<[bool; 2]>(),
    )
        .prop_map(|(operations, seed, first_psn, max_rd_atomic, window, channel, flags)| {
            let (loses, repeats, delays) = channel;
            let (window_packets, probe_above) = window;
            let [report_credits, asks_at_window_end] = flags;
            Plan {
                operations,
                seed,
                first_psn,
                max_rd_atomic,
                window_packets,
                probe_above,
                loses,
                repeats,
                delays,
                report_credits,
                asks_at_window_end,
            }
        })
}

/// A packet in flight: when it arrives, headers, payload.
type Flying = (Instant, Vec<u8>, Vec<u8>);

struct Copies(Vec<(Vec<u8>, Vec<u8>)>);

impl Emit for Copies {
    fn emit(&mut self, frame: &Frame<'_>) {
        let mut payload = vec![0; frame.payload.len()];
        frame.payload.copy_to(&mut payload);
        self.0.push((frame.head.to_vec(), payload));
    }
}

/// Expected results, from executing the operations one after the other.
struct Expected {
    /// Value that each atomic must return.
    found: Vec<Option<u64>>,
    /// The words before each operation, and at the end.
    words: Vec<[u64; WORDS as usize]>,
}

fn expected(operations: &[Operation]) -> Expected {
    let mut words = [0; WORDS as usize];
    let mut expected = Expected { found: Vec::new(), words: vec![words] };
    for operation in operations {
        let mut found = None;
        match operation.kind {
            Kind::Add { word, value } => {
                found = Some(words[word as usize]);
                words[word as usize] += value;
            }
            Kind::Swap { word, compare, value } => {
                found = Some(words[word as usize]);
                if words[word as usize] == compare {
                    words[word as usize] = value;
                }
            }
            Kind::WriteWord { word, value } => words[word as usize] = value,
            _ => {}
        }
        expected.found.push(found);
        expected.words.push(words);
    }
    expected
}

struct Pair {
    plan: Plan,
    rng: SplitMix64,
    now: Instant,
    requester: Requester,
    responder: Responder,
    receives: RecvQueue,
    near: Device,
    far: Device,
    there: Vec<Flying>,
    back: Vec<Flying>,
    posted: usize,
    receives_posted: u64,
}

impl Pair {
    fn new(plan: Plan) -> Self {
        let mut requester = Requester::new(16, 2, 32);
        requester.start(RequesterConfig {
            qpn: Qpn::new(1),
            dest_qpn: Qpn::new(2),
            sq_psn: Psn::new(plan.first_psn),
            mtu: Mtu::B256,
            max_rd_atomic: plan.max_rd_atomic,
            timeout: Some(Duration::from_us(50)),
            retry_cnt: 7,
            rnr_retry: 7,
            window_packets: plan.window_packets,
            ack_request_at_window_end: plan.asks_at_window_end,
            probe_above: plan.probe_above,
            ..*requester.config()
        });
        let responder = Responder::new(ResponderConfig {
            qpn: Qpn::new(2),
            dest_qpn: Qpn::new(1),
            rq_psn: Psn::new(plan.first_psn),
            mtu: Mtu::B256,
            max_dest_rd_atomic: plan.max_rd_atomic,
            min_rnr_timer: 1,
            ack_every: 4,
            report_credits: plan.report_credits,
            migreq: false,
            pkey: 0xffff,
        });
        let (mut near, mut far) = (device(), device());
        far.memory.0[..8 * WORDS as usize].fill(0);
        for at in 0..2 * STRIDE {
            far.memory.0[(FIXED + at) as usize] = fixed(at);
        }
        for (id, operation) in plan.operations.iter().enumerate() {
            let at = id * STRIDE as usize;
            match operation.kind {
                Kind::WriteWord { value, .. } => near.set_word(at, value),
                Kind::Send { .. } => near.memory.0[at..at + STRIDE as usize].fill(id as u8),
                _ => {}
            }
        }
        Pair {
            rng: SplitMix64::new(plan.seed),
            now: Instant::ZERO,
            requester,
            responder,
            receives: RecvQueue::new(4, 1),
            near,
            far,
            there: Vec::new(),
            back: Vec::new(),
            posted: 0,
            receives_posted: 0,
            plan,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// Posts the next operation if there is space for it.
    fn post(&mut self) {
        let Some(&Operation { kind, fence }) = self.plan.operations.get(self.posted) else {
            return;
        };
        let rkey = RKey(KEY);
        let word_at = |word: u64| 8 * word;
        let (op, len) = match kind {
            Kind::Add { word, value } => {
                (SendOp::FetchAdd { remote_address: word_at(word), rkey, add: value }, 8)
            }
            Kind::Swap { word, compare, value } => {
                (SendOp::CmpSwap { remote_address: word_at(word), rkey, compare, swap: value }, 8)
            }
            Kind::WriteWord { word, .. } => {
                (SendOp::Write { remote_address: word_at(word), rkey, immediate: None }, 8)
            }
            Kind::ReadWord { word } => (SendOp::Read { remote_address: word_at(word), rkey }, 8),
            Kind::Read { at, len } => (SendOp::Read { remote_address: FIXED + at, rkey }, len),
            Kind::Send { len, immediate } => {
                (SendOp::Send { immediate: immediate.then_some([9; 4]), invalidate: None }, len)
            }
            Kind::WriteImmediate => {
                (SendOp::Write { remote_address: 0, rkey, immediate: Some([7; 4]) }, 0)
            }
        };
        // Two segments, split at random.
        let cut = self.rng.below(u64::from(len) + 1) as u32;
        let address = self.posted as u64 * STRIDE;
        let lkey = LKey(KEY);
        let segments = [
            Sge { address, len: cut, lkey },
            Sge { address: address + u64::from(cut), len: len - cut, lkey },
        ];
        let inline = matches!(op, SendOp::Write { .. } | SendOp::Send { .. }) && len <= 32;
        let wr = SendWr {
            wr_id: self.posted as u64,
            op,
            segments: &segments,
            inline,
            signaled: true,
            solicited: false,
            fence,
        };
        match self.requester.post(&wr, false, &self.near.memory) {
            Ok(()) => self.posted += 1,
            Err(refused) => assert_eq!(refused, SendRefused::Full(16)),
        }
    }

    fn post_receive(&mut self) {
        let address = RECEIVES + self.receives_posted * STRIDE;
        let segments = [Sge { address, len: STRIDE as u32, lkey: LKey(KEY) }];
        if self.receives.post(&RecvWr { wr_id: self.receives_posted, segments: &segments }).is_ok()
        {
            self.receives_posted += 1;
        }
    }

    /// Puts sent packets in flight, with losses, duplicates and delays.
    fn fly(&mut self, sent: Copies, back: bool) {
        // Without impairments once few retries are left, so that the requester never fails.
        let perfect = self.requester.snapshot().retries_left <= 3;
        for (head, payload) in sent.0 {
            if !perfect && self.chance(self.plan.loses) {
                continue;
            }
            let copies = 1 + u32::from(!perfect && self.chance(self.plan.repeats));
            for _ in 0..copies {
                let late =
                    if !perfect && self.chance(self.plan.delays) { self.rng.below(70) } else { 0 };
                let at = self.now + Duration::from_us(5 + late);
                let flying = (at, head.clone(), payload.clone());
                if back { self.back.push(flying) } else { self.there.push(flying) }
            }
        }
    }

    fn request_arrives(&mut self, head: &[u8], payload: &[u8]) {
        let packet = Packet::parse(head).unwrap().unwrap();
        let payload = Payload::Bytes(payload);
        self.responder.handle_request(
            &packet,
            &packet.bth(),
            &payload,
            &mut self.receives,
            &mut self.far,
        );
    }

    fn response_arrives(&mut self, head: &[u8], payload: &[u8]) {
        let packet = Packet::parse(head).unwrap().unwrap();
        let (psn, opcode, aeth) = (packet.psn(), packet.opcode(), packet.aeth());
        let payload = Payload::Bytes(payload);
        let (now, ctx) = (self.now, &mut self.near);
        if opcode == Opcode::RC_ATOMIC_ACK {
            let found = packet.atomic_ack_eth().unwrap().original;
            self.requester.handle_atomic_ack(now, psn, &aeth.unwrap(), found, ctx);
        } else if opcode.verb() == Some(Verb::ReadResponse) {
            self.requester.handle_read_response(now, psn, opcode, aeth.as_ref(), &payload, ctx);
        } else {
            self.requester.handle_ack(now, psn, &aeth.unwrap(), ctx);
        }
    }

    /// Advances by one microsecond.
    fn step(&mut self) {
        self.now += Duration::from_us(1);
        self.requester.handle_timeout(self.now, &mut self.near);
        if self.chance(50) {
            self.post();
        }
        if self.chance(20) {
            self.post_receive();
        }
        for (_, head, payload) in arrived(&mut self.there, self.now) {
            self.request_arrives(&head, &payload);
        }
        for (_, head, payload) in arrived(&mut self.back, self.now) {
            self.response_arrives(&head, &payload);
        }
        let mut sent = Copies(Vec::new());
        if self.chance(70) {
            self.requester.transmit(self.now, &mut self.near, &template(), &mut sent);
        }
        self.fly(sent, false);
        let mut sent = Copies(Vec::new());
        if self.chance(70) {
            self.responder.transmit(&self.receives, &mut self.far, &template(), &mut sent);
        }
        self.fly(sent, true);
    }

    fn is_done(&self) -> bool {
        self.posted == self.plan.operations.len() && self.requester.is_idle()
            || self.requester.is_failed()
    }
}

/// Far byte `at` of the read-only area.
fn fixed(at: u64) -> u8 {
    (at % 251) as u8
}

/// Removes the packets that have arrived, in the order of sending.
fn arrived(flying: &mut Vec<Flying>, now: Instant) -> Vec<Flying> {
    let (arrived, rest) = std::mem::take(flying).into_iter().partition(|(at, ..)| *at <= now);
    *flying = rest;
    arrived
}

/// The near memory of READ `id` must hold the words' values after all earlier operations, or those
/// up to the first operation that had to wait for it.
fn check_word_read(pair: &Pair, expected: &Expected, id: usize, word: u64) {
    let operations = &pair.plan.operations;
    let fenced =
        (id + 1..operations.len()).find(|&i| operations[i].fence).unwrap_or(operations.len());
    let found = pair.near.word(id * STRIDE as usize);
    let possible: Vec<_> =
        expected.words[id..=fenced].iter().map(|words| words[word as usize]).collect();
    assert!(
        possible.contains(&found),
        "READ {id} of word {word} found {found}, not of {possible:?}"
    );
}

fn check(pair: &Pair) {
    let operations = &pair.plan.operations;
    let expected = expected(operations);
    let done: Vec<_> = pair.near.completions.iter().map(|c| (c.wr_id, c.status)).collect();
    let all: Vec<_> = (0..operations.len() as u64).map(|id| (id, Status::Success)).collect();
    assert_eq!(done, all);
    let mut received = pair.far.completions.iter();
    for (id, operation) in operations.iter().enumerate() {
        let at = id * STRIDE as usize;
        match operation.kind {
            Kind::Add { .. } | Kind::Swap { .. } => {
                assert_eq!(Some(pair.near.word(at)), expected.found[id], "atomic {id}");
            }
            Kind::WriteWord { .. } => {}
            Kind::ReadWord { word } => check_word_read(pair, &expected, id, word),
            Kind::Read { at: from, len } => {
                let right = (0..u64::from(len)).map(|i| fixed(from + i));
                assert!(
                    right.eq(pair.near.memory.0[at..at + len as usize].iter().copied()),
                    "READ {id}"
                );
            }
            Kind::Send { len, immediate } => {
                let c = received.next().expect("a receive for each SEND");
                assert_eq!(
                    (c.byte_len, c.immediate.is_some(), c.op),
                    (len, immediate, CompletionOp::Recv)
                );
                let into = (RECEIVES + c.wr_id * STRIDE) as usize;
                let bytes = &pair.far.memory.0[into..into + len as usize];
                assert!(bytes.iter().all(|&b| b == id as u8), "SEND {id}");
            }
            Kind::WriteImmediate => {
                assert_eq!(received.next().unwrap().op, CompletionOp::RecvWriteImmediate);
            }
        }
    }
    assert_eq!(received.next(), None);
    let ids = pair.far.completions.iter().map(|c| c.wr_id);
    assert!(ids.eq(0..pair.far.completions.len() as u64));
    for word in 0..WORDS as usize {
        assert_eq!(pair.far.word(8 * word), expected.words[operations.len()][word], "word {word}");
    }
    let atomics = expected.found.iter().flatten().count();
    assert_eq!(pair.far.counters.get(Counter::RxAtomicRequests), atomics as u64);
    assert_eq!(pair.responder.fault(), None);
}

fn run(plan: Plan) -> Pair {
    let mut pair = Pair::new(plan);
    for _ in 0..1_000_000 {
        pair.step();
        if pair.is_done() {
            check(&pair);
            return pair;
        }
    }
    panic!("stuck: {:?} {:?}", pair.requester.snapshot(), pair.responder.snapshot());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_operation_happens_exactly_once_and_in_order(plan in plans()) {
        run(plan);
    }
}

/// The property's channel has the intended effect: atomics are duplicated and answered from memory.
#[test]
fn repetitions_of_atomics_do_occur() {
    let operation = Operation { kind: Kind::Add { word: 0, value: 1 }, fence: false };
    let pair = run(Plan {
        operations: vec![operation; OPERATIONS_MAX],
        seed: 1,
        first_psn: 0,
        max_rd_atomic: 4,
        window_packets: 20,
        probe_above: PROBE_ABOVE,
        loses: 20,
        repeats: 20,
        delays: 20,
        report_credits: false,
        asks_at_window_end: true,
    });
    assert!(pair.near.counters.get(Counter::TxRetransmits) > 20);
    assert!(pair.far.counters.get(Counter::DuplicateRequest) > 20);
    assert!(pair.far.counters.get(Counter::TxSequenceNak) > 3);
}
