//! Sequences of packets that no conforming peer sends: no panic, no double completion, and bounded
//! state.

use crate::script::{Device, KEY, MEMORY, device, template};
use longhaul_node::Payload;
use longhaul_rc::*;
use longhaul_units::{Duration, Instant, LKey, Msn, Psn, Qpn, RKey};
use longhaul_wire::{Aeth, AtomicEth, Bth, Head, NakCode, Opcode, Packet, Reth, Syndrome, Verb};
use longhaul_wire_script::Wire;
use longhaul_work::*;
use proptest::prelude::*;

const READS: u32 = 2;

#[derive(Clone, Debug)]
enum Event {
    Request { opcode: u8, ahead: i32, len: usize, address: u64, rkey: u32, dma: u32, ack: bool },
    Response { opcode: u8, ahead: i32, len: usize, syndrome: u8 },
    Post { op: u8, len: u32, lkey: u32, fence: bool },
    PostReceive { len: u32 },
    Transmit,
    Wait,
}

/// Lengths around the relevant ones at a path MTU of 256.
fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), Just(255), Just(256), Just(257), 0..600usize]
}

fn addresses() -> impl Strategy<Value = u64> {
    let end = MEMORY as u64;
    prop_oneof![
        0..64u64,
        end - 300..end + 8,
        u64::MAX - 16..=u64::MAX,
        (0..100u64).prop_map(|n| 8 * n)
    ]
}

fn ahead() -> impl Strategy<Value = i32> {
    prop_oneof![6 => Just(0), 3 => -6..6i32, 1 => any::<i32>()]
}

fn events() -> impl Strategy<Value = Event> {
    let request = (0..0x18u8, ahead(), lens(), addresses(), 0..3u32, lens(), any::<bool>())
        .prop_map(|(opcode, ahead, len, address, rkey, dma, ack)| {
            // Usually the length matches the opcode.
            let (len, dma) = match opcode {
                0x0c | 0x13 | 0x14 if ack => (0, dma),
                0x06 => (len, 600),
                _ if rkey == KEY => (len, len),
                _ => (len, dma),
            };
            let dma = dma as u32;
            Event::Request { opcode, ahead, len, address, rkey, dma, ack }
        });
    let response =
        (0x0d..0x13u8, ahead(), lens(), any::<u8>()).prop_map(|(opcode, ahead, len, syndrome)| {
            Event::Response { opcode, ahead, len, syndrome }
        });
    let post = (0..5u8, 0..700u32, 0..8u32, any::<bool>())
        .prop_map(|(op, len, lkey, fence)| Event::Post { op, len, lkey: lkey.min(KEY), fence });
    prop_oneof![
        8 => request,
        4 => response,
        4 => post,
        2 => (0..600u32).prop_map(|len| Event::PostReceive { len }),
        6 => Just(Event::Transmit),
        1 => Just(Event::Wait),
    ]
}

struct Victim {
    now: Instant,
    device: Device,
    requester: Requester,
    responder: Responder,
    receives: RecvQueue,
    posted: u64,
    received: u64,
}

impl Victim {
    fn new() -> Self {
        let mut requester = Requester::new(8, 2, 0);
        requester.start(RequesterConfig {
            mtu: Mtu::B256,
            max_rd_atomic: READS,
            timeout: Some(Duration::from_us(10)),
            retry_cnt: 7,
            rnr_retry: 3,
            ..*requester.config()
        });
        let responder = Responder::new(ResponderConfig {
            qpn: Qpn::new(1),
            dest_qpn: Qpn::new(2),
            rq_psn: Psn::new(0),
            mtu: Mtu::B256,
            max_dest_rd_atomic: READS,
            min_rnr_timer: 1,
            ack_every: 4,
            report_credits: true,
            migreq: false,
            pkey: 0xffff,
        });
        Victim {
            now: Instant::ZERO,
            device: device(),
            requester,
            responder,
            receives: RecvQueue::new(4, 1),
            posted: 0,
            received: 0,
        }
    }

    fn request(&mut self, bth: &Bth, len: usize, address: u64, (rkey, dma): (u32, u32)) {
        let mut head = Head::begin(&template(), bth);
        let opcode = bth.opcode;
        let rkey = RKey(rkey);
        if opcode.has_reth() {
            head.push_reth(&Reth { virtual_address: address, rkey, len: dma });
        }
        if opcode.has_atomic() {
            head.push_atomic(&AtomicEth {
                virtual_address: address,
                rkey,
                swap_or_add: 1,
                compare: 0,
            });
        }
        if opcode.has_immediate() {
            head.push_immediate([0; 4]);
        } else if opcode.has_invalidate() {
            head.push_invalidate(rkey);
        }
        head.finish(&template(), len);
        let Ok(Some(packet)) = Packet::parse(head.bytes()) else { return };
        let payload = vec![0; len];
        let payload = Payload::Bytes(&payload);
        self.responder.handle_request(&packet, bth, &payload, &mut self.receives, &mut self.device);
    }

    fn response(&mut self, opcode: Opcode, psn: Psn, len: usize, syndrome: u8) {
        let syndrome = match syndrome % 8 {
            0..4 => Syndrome::Ack { credit_code: syndrome / 8 },
            4 => Syndrome::RnrNak { timer_code: 1 },
            5 => Syndrome::Nak(NakCode::PsnSequence),
            6 => Syndrome::Reserved(syndrome),
            _ if syndrome > 200 => Syndrome::Nak(NakCode::RemoteAccess),
            _ => Syndrome::Nak(NakCode::PsnSequence),
        };
        let aeth = Aeth { syndrome, msn: Msn::new(u32::from(len as u8)) };
        let ctx = &mut self.device;
        match opcode.verb() {
            Some(Verb::Acknowledge) => self.requester.handle_ack(self.now, psn, &aeth, ctx),
            Some(Verb::AtomicAcknowledge) => {
                self.requester.handle_atomic_ack(self.now, psn, &aeth, 1, ctx);
            }
            _ => {
                let payload = vec![0; len];
                let payload = Payload::Bytes(&payload);
                let aeth = opcode.has_aeth().then_some(&aeth);
                self.requester.handle_read_response(self.now, psn, opcode, aeth, &payload, ctx);
            }
        }
    }

    fn post(&mut self, op: u8, len: u32, lkey: u32, fence: bool) {
        if self.requester.is_failed() {
            return;
        }
        let (remote_address, rkey) = (64, RKey(KEY));
        let (op, len) = match op {
            0 => (SendOp::Send { immediate: None, invalidate: None }, len),
            1 => (SendOp::Write { remote_address, rkey, immediate: None }, len),
            2 => (SendOp::Read { remote_address, rkey }, len),
            3 => (SendOp::CmpSwap { remote_address, rkey, compare: 1, swap: 2 }, 8),
            _ => (SendOp::FetchAdd { remote_address, rkey, add: 1 }, 8),
        };
        let segments = [Sge { address: 0, len, lkey: LKey(lkey) }];
        let wr = SendWr {
            wr_id: self.posted,
            op,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence,
        };
        if self.requester.post(&wr, false, &self.device.memory).is_ok() {
            self.posted += 1;
        }
    }

    fn run(&mut self, event: &Event) {
        match *event {
            Event::Request { opcode, ahead, len, address, rkey, dma, ack } => {
                let expected = self.responder.snapshot().expected.get();
                let psn = Psn::new(expected.wrapping_add_signed(ahead));
                let mut bth = Bth::new(Opcode(opcode), Qpn::new(1), psn);
                bth.ack_request = ack;
                self.request(&bth, len, address, (rkey, dma));
            }
            Event::Response { opcode, ahead, len, syndrome } => {
                let una = self.requester.snapshot().una.get();
                self.response(
                    Opcode(opcode),
                    Psn::new(una.wrapping_add_signed(ahead)),
                    len,
                    syndrome,
                );
            }
            Event::Post { op, len, lkey, fence } => self.post(op, len, lkey, fence),
            Event::PostReceive { len } => {
                let segments = [Sge { address: 512, len, lkey: LKey(KEY) }];
                let wr = RecvWr { wr_id: self.received, segments: &segments };
                self.received += u64::from(self.receives.post(&wr).is_ok());
            }
            Event::Transmit => {
                let mut wire = Wire::default();
                self.requester.transmit(self.now, &mut self.device, &template(), &mut wire);
                self.responder.transmit(&self.receives, &mut self.device, &template(), &mut wire);
            }
            Event::Wait => {
                self.now += Duration::from_us(4);
                self.requester.handle_timeout(self.now, &mut self.device);
            }
        }
    }

    fn check(&self) {
        assert!(self.responder.snapshot().reads <= 2 * READS);
        assert!(self.requester.snapshot().reads <= READS);
        // At most one receive is held beside those that wait.
        assert!(self.receives.in_use() - self.receives.len() <= 1);
        assert!(!self.requester.is_failed() || self.requester.is_idle());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_packets_is_survived(events in prop::collection::vec(events(), 1..200)) {
        let mut victim = Victim::new();
        for event in &events {
            victim.run(event);
            victim.check();
        }
        let Victim { requester, responder, receives, device, .. } = &mut victim;
        requester.flush(device);
        responder.flush(receives, device);
        prop_assert_eq!(receives.in_use(), receives.len());
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for c in &victim.device.completions {
            let is_receive = matches!(c.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate);
            if is_receive { receives.push(c.wr_id) } else { sends.push(c.wr_id) }
        }
        // Each once, in posting order.
        prop_assert!(sends.into_iter().eq(0..victim.posted));
        prop_assert!(receives.iter().copied().eq(0..receives.len() as u64));
    }
}
