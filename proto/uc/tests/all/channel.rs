//! Properties over channels that lose, duplicate and reorder, and with packets that no requester
//! sends.

use crate::script::{MEMORY, Qp};
use longhaul_uc::{Responder, ResponderConfig};
use longhaul_units::{LKey, Psn, Qpn, RKey};
use longhaul_wire::{Bth, Opcode, Reth};
use longhaul_wire_script::{Extended, KEY, Line, Sent, packet, template};
use longhaul_work::{CompletionOp, Counter, SendOp, SendWr, Sge, Status};
use proptest::prelude::*;

/// Memory of one message.
const SLOT: u32 = 2048;
const MESSAGES_MAX: usize = 10;
/// Address of the receives; messages and written data are below.
const RECEIVES: u64 = MEMORY as u64 / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    WriteImmediate,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    len: u32,
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let kind =
        prop_oneof![3 => Just(Kind::Send), 1 => Just(Kind::Write), 1 => Just(Kind::WriteImmediate)];
    let message = (kind, 0..1600u32).prop_map(|(kind, len)| Message { kind, len });
    prop::collection::vec(message, 1..MESSAGES_MAX)
}

/// Fate of a packet in flight.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    /// After this many later packets.
    Late(usize),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        12 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => (1..9usize).prop_map(Fate::Late),
    ];
    prop::collection::vec(fate, 64)
}

fn content(message: usize, at: u32) -> u8 {
    (message as u32 * 37 + at / 256 * 11 + at) as u8
}

/// Byte `at` of message `i` is at `i * SLOT + at` of both memories.
fn send_all(near: &mut Qp, messages: &[Message]) -> Vec<(usize, u32, Sent)> {
    let mut sent = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        let address = i as u64 * u64::from(SLOT);
        for at in 0..message.len {
            near.device.memory.0[address as usize + at as usize] = content(i, at);
        }
        let immediate = Some((i as u32).to_be_bytes());
        let (remote_address, rkey) = (address, RKey(KEY));
        let op = match message.kind {
            Kind::Send => SendOp::Send { immediate, invalidate: None },
            Kind::Write => SendOp::Write { remote_address, rkey, immediate: None },
            Kind::WriteImmediate => SendOp::Write { remote_address, rkey, immediate },
        };
        let segments = [Sge { address, len: message.len, lkey: LKey(KEY) }];
        let (inline, signaled, solicited, fence) = (false, true, false, false);
        let wr =
            SendWr { wr_id: i as u64, op, segments: &segments, inline, signaled, solicited, fence };
        near.halves.requester.post(&wr, false, &near.device.memory).unwrap();
        let mut part = 0;
        while let Some(packet) = near.transmit() {
            sent.push((i, part, packet));
            part += 1;
        }
        let done = near.next_completion().expect("done when its last packet has left");
        assert_eq!((done.wr_id, done.status), (i as u64, Status::Success));
    }
    sent
}

fn travel<T: Clone>(sent: &[T], fates: &[Fate]) -> Vec<T> {
    let mut arriving = Vec::new();
    for (i, (packet, fate)) in sent.iter().zip(fates.iter().cycle()).enumerate() {
        let copies = match fate {
            Fate::Lost => 0,
            Fate::Twice => 2,
            Fate::Arrives | Fate::Late(_) => 1,
        };
        let due = i + if let Fate::Late(by) = fate { *by } else { 0 };
        arriving.extend(std::iter::repeat_n((due, packet.clone()), copies));
    }
    arriving.sort_by_key(|(due, _)| *due);
    arriving.into_iter().map(|(_, packet)| packet).collect()
}

/// The messages whose packets arrive consecutively: exactly these must be delivered.
fn whole(arriving: &[(usize, u32, Sent)], messages: &[Message]) -> Vec<usize> {
    let mut whole = Vec::new();
    let mut run = None;
    for (message, part, _) in arriving {
        run = match run {
            _ if *part == 0 => Some((*message, 0)),
            Some((of, before)) if of == *message && before + 1 == *part => Some((of, *part)),
            _ => None,
        };
        let parts = messages[*message].len.div_ceil(256).max(1);
        if run == Some((*message, parts - 1)) {
            whole.push(*message);
            run = None;
        }
    }
    whole
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn exactly_the_messages_that_arrive_whole_are_delivered(
        messages in messages(),
        fates in fates(),
        psn in 0xff_fff0..0x100_0010u32,
    ) {
        let config = format!("config mtu=256 psn={}", Psn::new(psn));
        let config = Line::of(&config);
        let (mut near, mut far) = (Qp::new(&config), Qp::new(&config));
        let sent = send_all(&mut near, &messages);
        let arriving = travel(&sent, &fates);
        let mut completed = Vec::new();
        for (_, _, packet) in &arriving {
            // One receive waits, or is taken by the message being received.
            if far.recv.in_use() == 0 {
                far.post_receive(&[Sge { address: RECEIVES, len: SLOT, lkey: LKey(KEY) }]);
            }
            far.deliver(packet);
            while let Some(done) = far.next_completion() {
                prop_assert_eq!(done.status, Status::Success);
                let i = u32::from_be_bytes(done.immediate.expect("every message has its number"))
                    as usize;
                completed.push(i);
                prop_assert_eq!(done.byte_len, messages[i].len);
                let (op, at) = match messages[i].kind {
                    Kind::Send => (CompletionOp::Recv, RECEIVES as usize),
                    _ => (CompletionOp::RecvWriteImmediate, i * SLOT as usize),
                };
                prop_assert_eq!(done.op, op);
                for (k, &byte) in
                    far.device.memory.0[at..at + done.byte_len as usize].iter().enumerate()
                {
                    prop_assert_eq!(byte, content(i, k as u32), "message {} byte {}", i, k);
                }
            }
        }
        let mut expected = whole(&arriving, &messages);
        let plain = |i: &usize| messages[*i].kind == Kind::Write;
        let writes = expected.iter().filter(|i| messages[**i].kind != Kind::Send).count() as u64;
        prop_assert_eq!(far.device.counters.get(Counter::RxWriteRequests), writes);
        expected.retain(|i| !plain(i));
        prop_assert_eq!(completed, expected);
    }

    #[test]
    fn no_packet_writes_where_it_may_not(packets in prop::collection::vec(hostile(), 1..200)) {
        let mut qp = Qp::new(&Line::of("config mtu=256"));
        // Only receives, and a range far from them, may be written.
        let (receives, written) = (1000..1000 + 8 * 700, 20_000..22_000);
        qp.device.local = receives.clone();
        qp.device.remote = written.clone();
        let mut psn = Psn::new(0);
        let (mut refilled, mut faults) = (0, 0u64);
        for (n, hostile) in packets.iter().enumerate() {
            if n % 8 == 0 && qp.recv.in_use() < 8 {
                let address = receives.start + refilled % 8 * 700;
                qp.post_receive(&[Sge { address, len: 700, lkey: LKey(KEY) }]);
                refilled += 1;
            }
            psn = psn.plus(hostile.step);
            let bth = Bth::new(Opcode(hostile.opcode), Qpn::new(0x11), psn);
            let reth = Reth {
                virtual_address: hostile.address,
                rkey: RKey(hostile.rkey),
                len: hostile.dma.unwrap_or(hostile.len),
            };
            let extended = Extended { reth, ..Extended::default() };
            let payload = vec![0xaa; hostile.len as usize];
            qp.deliver(&packet(&template(), &bth, &extended, payload));
            if qp.halves.responder.fault().is_some() {
                // Its owner resets the QP, and the peer continues.
                faults += 1;
                let config = *qp.halves.responder.config();
                qp.halves.responder = Responder::new(ResponderConfig { rq_psn: psn, ..config });
            }
        }
        qp.halves.responder.flush(&mut qp.recv, &mut qp.device);
        let mut ended = 0;
        while let Some(done) = qp.next_completion() {
            ended += 1;
            if done.status == Status::Success && done.op == CompletionOp::Recv {
                prop_assert!(done.byte_len <= 700);
            }
            prop_assert!(matches!(
                done.status,
                Status::Success | Status::WrFlush | Status::LocalLength
            ));
            faults -= u64::from(done.status == Status::LocalLength);
        }
        prop_assert_eq!(faults, 0, "each fault ends one receive");
        // Every receive completed once or waits.
        prop_assert_eq!(ended + u64::from(qp.recv.len()), qp.received);
        prop_assert_eq!(qp.recv.in_use(), qp.recv.len());
        for (at, &byte) in qp.device.memory.0.iter().enumerate() {
            let at = at as u64;
            prop_assert!(
                byte == 0xee || receives.contains(&at) || written.contains(&at),
                "{} written",
                at
            );
        }
    }
}

#[derive(Clone, Debug)]
struct Hostile {
    opcode: u8,
    /// Added to the previous PSN.
    step: u32,
    len: u32,
    dma: Option<u32>,
    address: u64,
    rkey: u32,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let opcode = prop_oneof![20 => 0x20..0x2cu8, 1 => any::<u8>()];
    let step = prop_oneof![9 => Just(1u32), 1 => 0..4u32, 1 => any::<u32>()];
    let len = prop_oneof![4 => Just(256u32), 2 => 0..257u32, 1 => 0..5000u32];
    let dma = prop_oneof![
        3 => Just(None),
        3 => (0..2100u32).prop_map(Some),
        1 => any::<u32>().prop_map(Some),
    ];
    let address = prop_oneof![6 => 19_990..22_010u64, 1 => any::<u64>(), 1 => 0..30_000u64];
    let rkey = prop_oneof![6 => Just(KEY), 1 => any::<u32>()];
    (opcode, step, len, dma, address, rkey).prop_map(|(opcode, step, len, dma, address, rkey)| {
        Hostile { opcode, step, len, dma, address, rkey }
    })
}
