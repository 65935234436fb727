//! Replays captures of the Linux kernel: our responder must answer as the kernel's did, and our
//! requester, given the same work and the kernel's answers, must send the same packets.

use crate::script::template;
use longhaul_node::{Frame, Gather, Payload};
use longhaul_rc::*;
use longhaul_units::{LKey, Psn, Qpn, RKey};
use longhaul_wire::{
    AtomicEth, Head, NakCode, Opcode, Packet, PathTemplate, Position, Syndrome, Verb, pcap,
};
use longhaul_work::*;
use std::collections::HashMap;

/// A device that permits everything and stores only the words of atomics.
#[derive(Default)]
struct Generous {
    words: HashMap<u64, u64>,
    counters: Counters,
    received: u32,
    /// Whether READs from the region are refused.
    refuse_reads: bool,
}

struct Zeros;

impl Gather for Zeros {
    fn gather(&self, _: u64, out: &mut [u8]) {
        out.fill(0);
    }
}

impl Context for Generous {
    fn local(&self, _: LKey, address: u64, _: u32, _: Intent) -> Result<u64, Denied> {
        Ok(address)
    }
    fn remote(&self, _: RKey, address: u64, _: u64, intent: RemoteIntent) -> Result<u64, Denied> {
        if self.refuse_reads && intent == RemoteIntent::Read { Err(Denied) } else { Ok(address) }
    }
    fn permits(&self, _: RemoteIntent) -> bool {
        true
    }
    fn invalidate(&mut self, _: RKey) -> bool {
        true
    }
    fn scatter(&mut self, _: u64, _: &Payload<'_>) {}
    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        let word = self.words.get_mut(&address).expect("a word of the capture");
        std::mem::replace(word, word.wrapping_add(add))
    }
    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let word = self.words.get_mut(&address).expect("a word of the capture");
        let found = *word;
        *word = if found == compare { swap } else { found };
        found
    }
    fn path(&self, _: AhId) -> Option<&PathTemplate> {
        None
    }
    fn gather(&self) -> &dyn Gather {
        &Zeros
    }
    fn complete_send(&mut self, _: Completion) {}
    fn complete_receive(&mut self, completion: Completion) {
        assert_eq!(completion.status, Status::Success);
        self.received += 1;
    }
    fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }
}

/// Compared fields of a packet: opcode, PSN, syndrome and MSN, request or result of an atomic,
/// payload length.
type Answer = (Opcode, Psn, Option<(Syndrome, u32)>, (Option<AtomicEth>, Option<u64>), usize);

fn answer(frame: &Frame<'_>) -> Answer {
    let packet = Packet::parse(frame.head).unwrap().unwrap();
    let aeth = packet.aeth().map(|a| (a.syndrome, a.msn.get()));
    let atomic = (packet.atomic_eth(), packet.atomic_ack_eth().map(|a| a.original));
    (packet.opcode(), packet.psn(), aeth, atomic, frame.payload.len())
}

struct Answers(Vec<Answer>);

impl Emit for Answers {
    fn emit(&mut self, frame: &Frame<'_>) {
        self.0.push(answer(frame));
    }
}

struct Replay {
    ours: Vec<Answer>,
    theirs: Vec<Answer>,
    device: Generous,
    fault: Option<Fault>,
}

/// Initial values of the words of a capture's atomics.
fn words_of(capture: &[u8]) -> HashMap<u64, u64> {
    let (mut words, mut asked) = (HashMap::new(), HashMap::new());
    for record in pcap::records(capture) {
        let record = record.unwrap();
        let Ok(Some(packet)) = Packet::parse(record.data) else { continue };
        if let Some(atomic) = packet.atomic_eth() {
            asked.insert(packet.psn(), atomic.virtual_address);
        }
        if let Some(found) = packet.atomic_ack_eth() {
            words.entry(asked[&packet.psn()]).or_insert(found.original);
        }
    }
    words
}

/// Replays the requests to `requests_to` of a capture to a responder.
fn replay(name: &str, requests_to: u32, refuse_reads: bool) -> Replay {
    let path = format!("{}/../../checks/captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let capture = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut responder: Option<Responder> = None;
    let words = words_of(&capture);
    let mut device = Generous { words, refuse_reads, ..Generous::default() };
    let mut queue = RecvQueue::new(1024, 1);
    let (mut ours, mut theirs) = (Answers(Vec::new()), Vec::new());
    for record in pcap::records(&capture) {
        let record = record.unwrap();
        let head = Head::copy_of(record.data);
        let frame = Frame::received(&head, record.data).unwrap();
        let Ok(Some(packet)) = Packet::parse(frame.head) else { continue };
        let bth = packet.bth();
        match bth.opcode.verb() {
            Some(_) if bth.opcode.is_response() => theirs.push(answer(&frame)),
            Some(_) if bth.dest_qp == Qpn::new(requests_to) => {
                let responder = responder.get_or_insert_with(|| {
                    Responder::new(ResponderConfig {
                        qpn: bth.dest_qp,
                        dest_qpn: Qpn::new(0),
                        rq_psn: bth.psn,
                        mtu: Mtu::B1024,
                        max_dest_rd_atomic: 16,
                        min_rnr_timer: 1,
                        ack_every: 1 << 20,
                        report_credits: false,
                        migreq: false,
                        pkey: 0xffff,
                    })
                });
                let segments = [Sge { address: 0, len: 1 << 30, lkey: LKey(0) }];
                while queue.in_use() < queue.depth() {
                    queue.post(&RecvWr { wr_id: 0, segments: &segments }).unwrap();
                }
                responder.handle_request(&packet, &bth, &frame.payload, &mut queue, &mut device);
                while responder.transmit(&queue, &mut device, &template(), &mut ours) {}
            }
            _ => {}
        }
    }
    let fault = responder.and_then(|r| r.fault());
    Replay { ours: ours.0, theirs, device, fault }
}

#[test]
fn every_operation_is_answered_as_the_kernel_answers_it() {
    for (name, qpn, answers) in [
        ("rc_all_ops_mtu1024", 0x19, 28),
        ("rc_psn_wrap", 0x1c, 3),
        ("rc_atomic_cmp_swap", 0x2e, 20),
    ] {
        let replay = replay(name, qpn, false);
        assert_eq!(replay.ours, replay.theirs, "{name}");
        assert!(replay.ours.len() >= answers, "{name}: {}", replay.ours.len());
        assert_eq!(replay.fault, None);
    }
}

#[test]
fn a_refused_read_is_answered_as_the_kernel_answers_it() {
    let replay = replay("rc_nak_remote_access_read", 0x23, true);
    assert_eq!(replay.ours, replay.theirs);
    assert_eq!(replay.fault, Some(Fault::RemoteAccess));
    assert_eq!(replay.device.received, 1);
}

#[test]
fn gaps_are_answered_with_one_sequence_nak_each() {
    let replay = replay("rc_write_loss5pct_16k", 0x11, false);
    assert_eq!(replay.fault, None);
    let naks = |answers: &[Answer]| -> Vec<(Psn, u32)> {
        answers
            .iter()
            .filter_map(|(_, psn, aeth, ..)| match aeth {
                Some((Syndrome::Nak(NakCode::PsnSequence), msn)) => Some((*psn, *msn)),
                _ => None,
            })
            .collect()
    };
    assert_eq!(naks(&replay.ours), naks(&replay.theirs));
    assert!(naks(&replay.ours).len() > 5);
}

/// A request of the kernel, and the packets that it took.
struct Operation {
    op: SendOp,
    len: usize,
    solicited: bool,
    packets: Vec<(Answer, bool)>,
}

/// Operations to `requests_to` of a capture, and the headers and payloads of their answers.
fn operations(name: &str, requests_to: u32) -> (Vec<Operation>, Vec<(Head, Vec<u8>)>) {
    let path = format!("{}/../../checks/captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let capture = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (mut operations, mut answers) = (Vec::<Operation>::new(), Vec::new());
    for record in pcap::records(&capture) {
        let record = record.unwrap();
        let head = Head::copy_of(record.data);
        let frame = Frame::received(&head, record.data).unwrap();
        let Ok(Some(packet)) = Packet::parse(frame.head) else { continue };
        let bth = packet.bth();
        match bth.opcode.verb() {
            Some(_) if bth.opcode.is_response() => {
                answers
                    .push((Head::copy_of(frame.head), frame.payload.as_bytes().unwrap().to_vec()));
            }
            Some(verb) if bth.dest_qp == Qpn::new(requests_to) => {
                let immediate = packet.immediate();
                if matches!(bth.opcode.position(), Position::First | Position::Only) {
                    let (remote_address, rkey) =
                        packet.reth().map_or((0, RKey(0)), |r| (r.virtual_address, r.rkey));
                    let op = match verb {
                        Verb::CmpSwap | Verb::FetchAdd => {
                            atomic_op(verb, &packet.atomic_eth().unwrap())
                        }
                        Verb::Write => SendOp::Write { remote_address, rkey, immediate },
                        Verb::ReadRequest => SendOp::Read { remote_address, rkey },
                        _ => SendOp::Send { immediate, invalidate: None },
                    };
                    let len = match verb {
                        Verb::ReadRequest => packet.reth().unwrap().len as usize,
                        Verb::CmpSwap | Verb::FetchAdd => 8,
                        _ => 0,
                    };
                    operations.push(Operation { op, len, solicited: false, packets: Vec::new() });
                }
                let Some(last) = operations.last_mut() else { continue };
                match &mut last.op {
                    SendOp::Send { immediate: i, .. } | SendOp::Write { immediate: i, .. } => {
                        *i = immediate
                    }
                    _ => {}
                }
                last.len += frame.payload.len();
                last.solicited |= bth.solicited;
                last.packets.push((answer(&frame), bth.ack_request));
            }
            _ => {}
        }
    }
    (operations, answers)
}

fn atomic_op(verb: Verb, eth: &AtomicEth) -> SendOp {
    let AtomicEth { virtual_address: remote_address, rkey, swap_or_add, compare } = *eth;
    if verb == Verb::CmpSwap {
        SendOp::CmpSwap { remote_address, rkey, compare, swap: swap_or_add }
    } else {
        SendOp::FetchAdd { remote_address, rkey, add: swap_or_add }
    }
}

struct Requests(Vec<(Answer, bool)>);

impl Emit for Requests {
    fn emit(&mut self, frame: &Frame<'_>) {
        let asks = Packet::parse(frame.head).unwrap().unwrap().bth().ack_request;
        self.0.push((answer(frame), asks));
    }
}

/// Counts completions.
#[derive(Default)]
struct Finisher {
    inner: Generous,
    done: Vec<u64>,
}

impl Context for Finisher {
    fn local(&self, lkey: LKey, address: u64, len: u32, intent: Intent) -> Result<u64, Denied> {
        self.inner.local(lkey, address, len, intent)
    }
    fn remote(
        &self,
        rkey: RKey,
        address: u64,
        len: u64,
        intent: RemoteIntent,
    ) -> Result<u64, Denied> {
        self.inner.remote(rkey, address, len, intent)
    }
    fn permits(&self, _: RemoteIntent) -> bool {
        true
    }
    fn invalidate(&mut self, _: RKey) -> bool {
        true
    }
    fn scatter(&mut self, _: u64, _: &Payload<'_>) {}
    fn fetch_add(&mut self, _: u64, _: u64) -> u64 {
        unreachable!("a requester executes nothing")
    }
    fn compare_swap(&mut self, _: u64, _: u64, _: u64) -> u64 {
        unreachable!("a requester executes nothing")
    }
    fn path(&self, _: AhId) -> Option<&PathTemplate> {
        None
    }
    fn gather(&self) -> &dyn Gather {
        &Zeros
    }
    fn complete_send(&mut self, completion: Completion) {
        assert_eq!(completion.status, Status::Success);
        self.done.push(completion.wr_id);
    }
    fn complete_receive(&mut self, _: Completion) {}
    fn counters(&mut self) -> &mut Counters {
        &mut self.inner.counters
    }
}

#[test]
fn every_operation_is_requested_as_the_kernel_requests_it() {
    for (name, qpn) in
        [("rc_all_ops_mtu1024", 0x19), ("rc_psn_wrap", 0x1c), ("rc_atomic_cmp_swap", 0x2e)]
    {
        let (operations, answers) = operations(name, qpn);
        let mut answers = answers.into_iter().peekable();
        let first = operations[0].packets[0].0.1;
        let mut requester = Requester::new(16, 1, 0);
        requester.start(RequesterConfig {
            sq_psn: first,
            dest_qpn: Qpn::new(qpn),
            mtu: Mtu::B1024,
            max_rd_atomic: 1,
            ..*requester.config()
        });
        let mut device = Finisher::default();
        let now = longhaul_units::Instant::ZERO;
        for (id, operation) in operations.iter().enumerate() {
            let wr = SendWr {
                wr_id: id as u64,
                op: operation.op,
                segments: &[Sge { address: 0, len: operation.len as u32, lkey: LKey(0) }],
                inline: false,
                signaled: true,
                solicited: operation.solicited,
                fence: false,
            };
            requester.post(&wr, false, &Zeros).unwrap();
            let mut sent = Requests(Vec::new());
            while requester.transmit(now, &mut device, &template(), &mut sent) {}
            assert_eq!(sent.0, operation.packets, "{name}, operation {id}");
            while device.done.len() <= id {
                let (head, payload) = answers.next().expect("an answer for each operation");
                let packet = Packet::parse(head.bytes()).unwrap().unwrap();
                let (psn, opcode, aeth) = (packet.psn(), packet.opcode(), packet.aeth());
                match aeth {
                    Some(aeth) if opcode == Opcode::RC_ACK => {
                        requester.handle_ack(now, psn, &aeth, &mut device);
                    }
                    Some(aeth) if opcode == Opcode::RC_ATOMIC_ACK => {
                        let found = packet.atomic_ack_eth().unwrap().original;
                        requester.handle_atomic_ack(now, psn, &aeth, found, &mut device);
                    }
                    _ => {
                        let payload = Payload::Bytes(&payload);
                        requester.handle_read_response(
                            now,
                            psn,
                            opcode,
                            aeth.as_ref(),
                            &payload,
                            &mut device,
                        );
                    }
                }
            }
        }
        assert!(operations.len() >= 6, "{name}");
        assert_eq!(device.done, (0..operations.len() as u64).collect::<Vec<_>>());
        assert_eq!(device.inner.counters.drops(), 0);
    }
}
