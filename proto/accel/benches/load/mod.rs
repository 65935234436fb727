//! A busy flow for the benchmark and for instruction counts: WRITE packets from the LAN, ACKs from
//! the WAN.

use longhaul_accel::{Accelerator, Config, LAN, WAN};
use longhaul_node::{Frame, FrameBuf, FramePool, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{Instant, Msn, Psn, Qpn};
use longhaul_wire::icrc::Icrc;
use longhaul_wire::{Aeth, Bth, Head, MacAddr, Opcode, Packet, Path, PathTemplate, Syndrome};

/// How a packet's payload and trailer arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As from a port: bytes to copy, and an ICRC to check.
    Received,
    /// Bytes to copy; the ICRC is already checked.
    Copied,
    /// A pooled buffer to keep by reference, and an ICRC to check.
    Shared,
    /// A pooled buffer with a checked ICRC: measures the accelerator's own work.
    Own,
}

/// Packets per call of [`Load::run`].
pub const CHUNK: usize = 64;

/// Counts transmitted frames.
#[derive(Default)]
struct Nowhere {
    frames: u64,
}

impl Transmit for Nowhere {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        self.frames += 1;
        std::hint::black_box(frame.len());
    }
}

/// An accelerator and its input.
pub struct Load {
    accel: Accelerator,
    form: Form,
    /// Packets processed.
    sent: u64,
    now: Instant,
    heads: Vec<Head>,
    trailers: Vec<Trailer>,
    payload: Vec<u8>,
    /// Buffers of packets that another node has copied.
    pool: FramePool,
    held: Vec<FrameBuf>,
    requests: PathTemplate,
    answers: PathTemplate,
    flows: u32,
}

impl Load {
    /// Creates `flows` flows that take turns, with `payload_len` bytes per packet.
    pub fn new(form: Form, payload_len: usize, flows: u32) -> Load {
        let path = Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            source_ip: [10, 77, 0, 1].into(),
            destination_ip: [10, 77, 0, 2].into(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc123,
        };
        let payload: Vec<u8> = (0..payload_len).map(|i| i as u8).collect();
        let mut load = Load {
            accel: Accelerator::new(Config { flows_max: 1 << 16, ..Config::default() })
                .expect("valid"),
            form,
            sent: 0,
            now: Instant::from_ns(1000),
            heads: Vec::new(),
            trailers: Vec::new(),
            payload,
            pool: FramePool::new(),
            held: Vec::new(),
            requests: PathTemplate::new(&path),
            answers: PathTemplate::new(&path.reversed()),
            flows,
        };
        load.pair();
        load
    }

    /// Sends two messages and their ACKs, so that the flow is learnt.
    fn pair(&mut self) {
        for flow in 0..self.flows {
            for psn in 0..2 {
                let bth = Bth { ack_request: true, ..bth(flow, psn) };
                let mut head = Head::begin(&self.requests, &bth);
                let pad_len = head.finish(&self.requests, 0);
                let frame = Frame {
                    head: head.bytes(),
                    payload: Payload::EMPTY,
                    trailer: Trailer::Sealed { pad_len },
                };
                self.accel.handle_frame(self.now, LAN, &frame);
                self.acknowledge(flow, psn);
                self.accel.poll_transmit(self.now, &mut Nowhere::default());
            }
        }
        let known =
            self.accel.flows().filter(|f| f.state == longhaul_accel::FlowState::Terminated).count();
        assert_eq!(known, self.flows as usize);
    }

    /// Flow and PSN of packet `number`.
    fn packet(&self, number: u64) -> (u32, u64) {
        let flows = u64::from(self.flows);
        ((number % flows) as u32, 2 + number / flows)
    }

    fn acknowledge(&mut self, flow: u32, psn: u64) {
        let bth = Bth::new(Opcode::RC_ACK, Qpn::new(0x80_0000 + flow), psn_on_wire(flow, psn));
        let mut head = Head::begin(&self.answers, &bth);
        head.push_aeth(&Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(psn as u32 + 1) });
        let pad_len = head.finish(&self.answers, 0);
        let frame = Frame {
            head: head.bytes(),
            payload: Payload::EMPTY,
            trailer: Trailer::Sealed { pad_len },
        };
        self.accel.handle_frame(self.now, WAN, &frame);
    }

    /// Builds the next [`CHUNK`] packets.
    pub fn prepare(&mut self) {
        self.heads.clear();
        self.trailers.clear();
        self.held.clear();
        let checked = matches!(self.form, Form::Received | Form::Shared);
        for number in self.sent..self.sent + CHUNK as u64 {
            let (flow, psn) = self.packet(number);
            let bth = Bth { ack_request: true, ..bth(flow, psn) };
            let mut head = Head::begin(&self.requests, &bth);
            let pad_len = head.finish(&self.requests, self.payload.len());
            let trailer = if checked {
                let packet = Packet::parse(head.bytes()).expect("well formed").expect("RoCEv2");
                let mut icrc = Icrc::over_head(head.bytes(), &packet.layout());
                icrc.update(&self.payload);
                icrc.update(&[0; 3][..usize::from(pad_len)]);
                Trailer::Received { pad: [0; 3], pad_len, icrc: icrc.finish() }
            } else {
                Trailer::Sealed { pad_len }
            };
            if matches!(self.form, Form::Shared | Form::Own) {
                let payload = Payload::Bytes(&self.payload);
                self.held.push(self.pool.hold(&Frame { head: head.bytes(), payload, trailer }));
            } else {
                self.trailers.push(trailer);
                self.heads.push(head);
            }
        }
    }

    /// Processes the chunk: its packets are stored, sent and pseudo-ACKed, and a real ACK releases
    /// the packets before it.
    pub fn run(&mut self) {
        let mut out = Nowhere::default();
        for held in &self.held {
            self.accel.handle_frame(self.now, LAN, &held.as_frame());
        }
        for (head, trailer) in self.heads.iter().zip(&self.trailers) {
            let payload = Payload::Bytes(&self.payload);
            self.accel.handle_frame(
                self.now,
                LAN,
                &Frame { head: head.bytes(), payload, trailer: *trailer },
            );
        }
        self.now += longhaul_units::Duration::from_us(5);
        self.accel.poll_transmit(self.now, &mut out);
        // The responder is a chunk behind, and sends one ACK per flow and chunk.
        let flows_heard = CHUNK.min(self.flows as usize) as u64;
        for number in self.sent.saturating_sub(flows_heard)..self.sent {
            let (flow, psn) = self.packet(number);
            self.acknowledge(flow, psn);
        }
        self.sent += CHUNK as u64;
        assert!(out.frames >= CHUNK as u64, "{} frames out", out.frames);
    }
}

/// Distinct PSNs for each flow, so that an ACK fits only one.
fn psn_on_wire(flow: u32, psn: u64) -> Psn {
    Psn::from_sequence(psn + u64::from(flow) * 100)
}

fn bth(flow: u32, psn: u64) -> Bth {
    Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x1000 + flow), psn_on_wire(flow, psn))
}
