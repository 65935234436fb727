//! The longest and the shortest messages between a requester and a responder, without storing them.

use crate::script::template;
use longhaul_node::{Frame, Gather, Payload};
use longhaul_rc::*;
use longhaul_units::{Instant, LKey, RKey};
use longhaul_wire::{Head, Packet, PathTemplate, Verb};
use longhaul_work::*;

/// A device with unlimited memory that stores no byte.
#[derive(Default)]
struct Boundless {
    counters: Counters,
    completions: Vec<Completion>,
    scattered: u64,
    /// One past the highest address written to.
    top: u64,
    /// Every key is invalid.
    keyless: bool,
}

struct Nothing;

impl Gather for Nothing {
    fn gather(&self, _: u64, _: &mut [u8]) {}
}

impl Context for Boundless {
    fn local(&self, _: LKey, address: u64, _: u32, _: Intent) -> Result<u64, Denied> {
        if self.keyless { Err(Denied) } else { Ok(address) }
    }
    fn remote(&self, _: RKey, address: u64, _: u64, _: RemoteIntent) -> Result<u64, Denied> {
        if self.keyless { Err(Denied) } else { Ok(address) }
    }
    fn permits(&self, _: RemoteIntent) -> bool {
        true
    }
    fn invalidate(&mut self, _: RKey) -> bool {
        true
    }
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        self.scattered += payload.len() as u64;
        self.top = self.top.max(address + payload.len() as u64);
    }
    fn fetch_add(&mut self, _: u64, _: u64) -> u64 {
        0
    }
    fn compare_swap(&mut self, _: u64, _: u64, _: u64) -> u64 {
        0
    }
    fn path(&self, _: AhId) -> Option<&PathTemplate> {
        None
    }
    fn gather(&self) -> &dyn Gather {
        &Nothing
    }
    fn complete_send(&mut self, completion: Completion) {
        self.completions.push(completion);
    }
    fn complete_receive(&mut self, completion: Completion) {
        self.completions.push(completion);
    }
    fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }
}

/// The latest packet: its headers and the length of its payload.
struct Latest(Option<(Head, usize)>);

impl Emit for Latest {
    fn emit(&mut self, frame: &Frame<'_>) {
        self.0 = Some((Head::copy_of(frame.head), frame.payload.len()));
    }
}

/// A QP whose requester sends to its own responder.
struct Loop {
    requester: Requester,
    responder: Responder,
    queue: RecvQueue,
    near: Boundless,
    far: Boundless,
}

impl Loop {
    fn new(mtu: Mtu) -> Self {
        let mut requester = Requester::new(4, 4, 0);
        requester.start(RequesterConfig { mtu, max_rd_atomic: 1, ..*requester.config() });
        let responder = Responder::new(ResponderConfig {
            qpn: requester.config().qpn,
            dest_qpn: requester.config().dest_qpn,
            rq_psn: requester.config().sq_psn,
            mtu,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            ack_every: 64,
            report_credits: false,
            migreq: false,
            pkey: 0xffff,
        });
        let queue = RecvQueue::new(4, 4);
        Loop { requester, responder, queue, near: Boundless::default(), far: Boundless::default() }
    }

    fn post(&mut self, op: SendOp, lens: &[u32]) -> Result<(), SendRefused> {
        let segments: Vec<_> =
            lens.iter().map(|&len| Sge { address: 0, len, lkey: LKey(1) }).collect();
        let wr = SendWr {
            wr_id: 1,
            op,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.requester.post(&wr, false, &Nothing)
    }

    /// Runs until nothing is sent; returns the number of packets of each side.
    fn run(&mut self) -> (u64, u64) {
        let (mut asked, mut answered) = (0, 0);
        let mut latest = Latest(None);
        loop {
            let sent =
                self.requester.transmit(Instant::ZERO, &mut self.near, &template(), &mut latest);
            if let Some((head, len)) = latest.0.take() {
                asked += 1;
                let packet = Packet::parse(head.bytes()).unwrap().unwrap();
                let payload = Payload::Synthetic { len };
                let (queue, far) = (&mut self.queue, &mut self.far);
                self.responder.handle_request(&packet, &packet.bth(), &payload, queue, far);
            }
            if self.responder.transmit(&self.queue, &mut self.far, &template(), &mut latest) {
                answered += 1;
                self.answer(latest.0.take().unwrap());
            } else if !sent {
                return (asked, answered);
            }
        }
    }

    fn answer(&mut self, (head, len): (Head, usize)) {
        let packet = Packet::parse(head.bytes()).unwrap().unwrap();
        let (psn, aeth) = (packet.psn(), packet.aeth());
        let (now, ctx) = (Instant::ZERO, &mut self.near);
        if packet.opcode().verb() == Some(Verb::ReadResponse) {
            let payload = Payload::Synthetic { len };
            self.requester.handle_read_response(
                now,
                psn,
                packet.opcode(),
                aeth.as_ref(),
                &payload,
                ctx,
            );
        } else {
            self.requester.handle_ack(now, psn, &aeth.unwrap(), ctx);
        }
    }
}

const WRITE: SendOp = SendOp::Write { remote_address: 0, rkey: RKey(1), immediate: None };
const READ: SendOp = SendOp::Read { remote_address: 0, rkey: RKey(1) };
const SEND: SendOp = SendOp::Send { immediate: None, invalidate: None };
const LONGEST: u32 = 1 << 31;

#[test]
fn a_write_of_two_gib_arrives() {
    let mut pair = Loop::new(Mtu::B4096);
    pair.post(WRITE, &[LONGEST]).unwrap();
    assert_eq!(pair.run().0, u64::from(LONGEST) / 4096);
    assert_eq!(
        (pair.near.completions[0].status, pair.near.completions[0].byte_len),
        (Status::Success, LONGEST)
    );
    assert_eq!((pair.far.scattered, pair.far.top), (u64::from(LONGEST), u64::from(LONGEST)));
    assert_eq!(pair.far.counters.get(Counter::RxWriteRequests), 1);
}

#[test]
fn a_send_of_two_gib_in_pieces_fills_a_receive_of_two_gib_in_pieces() {
    let mut pair = Loop::new(Mtu::B4096);
    let segments = [1, LONGEST - 1].map(|len| Sge { address: 0, len, lkey: LKey(1) });
    pair.queue.post(&RecvWr { wr_id: 9, segments: &segments }).unwrap();
    pair.post(SEND, &[LONGEST / 2 + 3, LONGEST / 2 - 3]).unwrap();
    pair.run();
    assert_eq!(pair.near.completions[0].status, Status::Success);
    assert_eq!(
        (pair.far.completions[0].status, pair.far.completions[0].byte_len),
        (Status::Success, LONGEST)
    );
    assert_eq!((pair.far.scattered, pair.far.top), (u64::from(LONGEST), u64::from(LONGEST) - 1));
}

/// As many PSNs as may be outstanding.
#[test]
fn a_read_of_two_gib_at_the_smallest_mtu_takes_half_of_all_psns() {
    let mut pair = Loop::new(Mtu::B256);
    pair.post(READ, &[LONGEST]).unwrap();
    pair.post(WRITE, &[1]).unwrap();
    assert_eq!(pair.run(), (2, u64::from(WINDOW_MAX) + 1));
    let done: Vec<_> = pair.near.completions.iter().map(|c| (c.status, c.byte_len)).collect();
    assert_eq!(done, [(Status::Success, LONGEST), (Status::Success, 1)]);
    assert_eq!(pair.near.scattered, u64::from(LONGEST));
}

#[test]
fn more_than_two_gib_is_refused() {
    let mut pair = Loop::new(Mtu::B4096);
    for op in [WRITE, READ, SEND] {
        let given = u64::from(LONGEST) + 1;
        assert_eq!(pair.post(op, &[LONGEST, 1]), Err(SendRefused::MessageTooLong { given }));
        assert_eq!(pair.post(op, &[LONGEST + 1]), Err(SendRefused::MessageTooLong { given }));
    }
    assert_eq!(
        pair.post(WRITE, &[u32::MAX; 4]),
        Err(SendRefused::MessageTooLong { given: 4 * u64::from(u32::MAX) })
    );
}

#[test]
fn an_empty_message_needs_no_key_and_no_segment() {
    for lens in [&[][..], &[0], &[0, 0]] {
        let mut pair = Loop::new(Mtu::B256);
        (pair.near.keyless, pair.far.keyless) = (true, true);
        pair.queue.post(&RecvWr { wr_id: 9, segments: &[] }).unwrap();
        for op in [WRITE, READ, SEND] {
            pair.post(op, lens).unwrap();
        }
        pair.run();
        let done: Vec<_> =
            pair.near.completions.iter().map(|c| (c.op, c.status, c.byte_len)).collect();
        let ops = [CompletionOp::Write, CompletionOp::Read, CompletionOp::Send];
        assert_eq!(done, ops.map(|op| (op, Status::Success, 0)), "{lens:?}");
        assert_eq!(pair.far.completions[0].status, Status::Success);
        assert_eq!(pair.near.scattered + pair.far.scattered, 0);
    }
}

#[test]
fn empty_segments_among_others_are_passed_over() {
    let mut pair = Loop::new(Mtu::B256);
    let segments = [0, 100, 0, 300].map(|len| Sge { address: 0, len, lkey: LKey(1) });
    pair.queue.post(&RecvWr { wr_id: 9, segments: &segments }).unwrap();
    pair.post(SEND, &[0, 300, 0, 100]).unwrap();
    pair.run();
    assert_eq!(pair.near.completions[0].status, Status::Success);
    assert_eq!((pair.far.scattered, pair.far.top), (400, 300));
}
