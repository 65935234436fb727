//! A box between two hosts that both send arbitrary packets, with time passing.

use crate::packets::Fields;
use longhaul_accel::{Accelerator, Config, FlowState, FlowStatus, LAN, Mode, Policy, Role, WAN};
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_units::{Duration, Instant, Msn, Psn, Qpn, RKey};
use longhaul_wire::mad::{
    Drep, Dreq, GSI_QKEY, Header, Mad, Message, Rep, Req, ReqPath, Rtu, TransportService,
};
use longhaul_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Head, MacAddr, NakCode, Opcode, Path, Reth, Syndrome,
    Verb,
};
use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

/// Steps of one run.
const STEPS_MAX: usize = 200;
const CONNECTIONS: usize = 3;
/// First PSN of each connection; one is a few packets before the wrap of the PSN space.
const FIRST: [u32; CONNECTIONS] = [100, 0xff_fff8, 7_000_000];
const FLOWS_MAX: u32 = 4;
const TOTAL_BYTES_MAX: u64 = 256 << 10;
/// Longer READs are not answered packet by packet here.
const READ_PSNS_MAX: u32 = 1 << 12;
/// After this the box has given up a silent responder.
const PATIENCE: Duration = Duration::from_ms(15_000);

const REQUESTS: [Opcode; 14] = [
    Opcode::RC_SEND_ONLY,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_WRITE_FIRST,
    Opcode::RC_WRITE_MIDDLE,
    Opcode::RC_WRITE_LAST,
    Opcode::RC_SEND_FIRST,
    Opcode::RC_SEND_MIDDLE,
    Opcode::RC_SEND_LAST,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_SEND_ONLY,
    Opcode::CNP,
    Opcode::UC_WRITE_ONLY,
];
const RESPONSES: [Opcode; 6] = [
    Opcode::RC_READ_RESPONSE_ONLY,
    Opcode::RC_READ_RESPONSE_FIRST,
    Opcode::RC_READ_RESPONSE_MIDDLE,
    Opcode::RC_READ_RESPONSE_LAST,
    Opcode::RC_ATOMIC_ACK,
    Opcode::CNP,
];

/// Packets of one connection so far.
#[derive(Default)]
struct Said {
    /// Next PSN and message of the requester, and the first PSN that the responder has not
    /// acknowledged.
    next: u32,
    una: u32,
    msn: u32,
    /// PSNs of requests with a valid ICRC that reached the box from its LAN: the first PSN of each,
    /// and the number of PSNs.
    requested: Vec<(Psn, u32)>,
}

impl Said {
    fn has_requested(&self, psn: Psn) -> bool {
        self.requested.iter().any(|&(first, psns)| (0..psns as i32).contains(&psn.since(first)))
    }
}

#[derive(Default)]
struct Tap {
    out: Vec<(Side, Vec<u8>)>,
    room: usize,
}

impl Transmit for Tap {
    fn room(&mut self, _side: Side) -> usize {
        self.room.saturating_sub(self.out.len())
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.out.push((side, bytes));
    }
}

fn ip(host: u8) -> IpAddr {
    IpAddr::from([10, 77, 0, host])
}

fn path_to(side: Side) -> Path {
    let path = Path {
        source_mac: MacAddr([2, 0, 10, 77, 0, 1]),
        destination_mac: MacAddr([2, 0, 10, 77, 0, 2]),
        vlan: None,
        source_ip: ip(1),
        destination_ip: ip(2),
        traffic_class: 104,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc011,
    };
    if side == LAN {
        path
    } else {
        Path { udp_source_port: 0xc022, hop_limit: 61, ..path.reversed() }
    }
}

/// Destination QPN of frames that enter by `side`.
fn qpn_to(side: Side, connection: usize) -> Qpn {
    Qpn::new(if side == LAN { 0x22 } else { 0x11 } + 0x100 * connection as u32)
}

fn connection_of(side: Side, qpn: Qpn) -> Option<usize> {
    (0..CONNECTIONS).find(|&connection| qpn_to(side, connection) == qpn)
}

struct Play {
    node: Accelerator,
    now: Instant,
    said: [Said; CONNECTIONS],
    /// Latest frames that entered by each side and may leave.
    came: [VecDeque<Vec<u8>>; 2],
    room: usize,
}

impl Play {
    fn new(first: u8) -> Self {
        let mode = Mode::ALL[usize::from(first & 3) % Mode::ALL.len()];
        let config = Config {
            flow_bytes_max: 128 << 10,
            total_bytes_max: TOTAL_BYTES_MAX,
            passthrough_bytes_max: 64 << 10,
            flows_max: FLOWS_MAX,
            connections_max: 2,
            give_up_after: Duration::from_ms(5000),
            rto_max: Duration::from_ms(1000),
            role: if first & 4 == 0 { Role::Near } else { Role::Far },
            policy: Policy::all(mode),
            ..Config::default()
        };
        Play {
            node: Accelerator::new(config).expect("a configuration that is right"),
            now: Instant::from_ns(1000),
            said: FIRST.map(|psn| Said { next: psn, una: psn, ..Said::default() }),
            came: Default::default(),
            room: usize::MAX,
        }
    }

    /// Passes a frame to the box and checks its output.
    fn give(&mut self, side: Side, bytes: Vec<u8>) {
        if side == LAN
            && let Ok(Some((fields, true))) = Fields::read(&bytes)
            && let Some(connection) = connection_of(LAN, fields.bth.dest_qp)
        {
            // The responses of a READ have PSNs too, as many as the path MTU dictates, which the
            // hosts announce.
            let is_read = fields.bth.opcode == Opcode::RC_READ_REQUEST;
            let read = fields.reth.filter(|_| is_read).map_or(0, |reth| reth.len);
            let psns = read.div_ceil(256).clamp(1, READ_PSNS_MAX);
            self.said[connection].requested.push((fields.bth.psn, psns));
        }
        let head = Head::copy_of(&bytes);
        match Frame::received(&head, &bytes) {
            Ok(frame) => self.node.handle_frame(self.now, side, &frame),
            Err(_) => self.node.handle_frame(self.now, side, &Frame::opaque(&bytes)),
        }
        let came = &mut self.came[side];
        came.push_back(bytes);
        if came.len() > 64 {
            came.pop_front();
        }
        self.pump();
    }

    fn pump(&mut self) -> Vec<(Side, Vec<u8>)> {
        let mut tap = Tap { room: self.room, ..Tap::default() };
        self.node.poll_transmit(self.now, &mut tap);
        for (side, bytes) in &tap.out {
            if *side == LAN {
                self.check_answer(bytes);
            }
        }
        self.check_bounds();
        tap.out
    }

    /// An answer of the box in the responder's name acknowledges only requests that the box has
    /// received.
    fn check_answer(&self, bytes: &[u8]) {
        let Ok(Some((fields, true))) = Fields::read(bytes) else { return };
        if fields.bth.opcode != Opcode::RC_ACK || self.came[WAN].iter().any(|came| came == bytes) {
            return;
        }
        if !matches!(fields.aeth.map(|aeth| aeth.syndrome), Some(Syndrome::Ack { .. })) {
            return;
        }
        // Connection manager messages determine the requester QP of a connection.
        let psn = fields.bth.psn;
        let is_known = self.said.iter().any(|said| said.has_requested(psn));
        assert!(is_known, "an ACK of PSN {psn}, which nobody sent: {fields:?}");
    }

    fn check_bounds(&self) {
        assert!(self.node.stored_bytes() <= TOTAL_BYTES_MAX + u64::from(FLOWS_MAX) * (64 << 10));
        let flows: Vec<FlowStatus> = self.node.flows().collect();
        assert!(flows.len() <= FLOWS_MAX as usize, "{} flows", flows.len());
        let sum: u64 = flows.iter().map(|flow| flow.stored_bytes).sum();
        assert_eq!(self.node.stored_bytes(), sum, "memory that no flow accounts for");
        for flow in flows.iter().filter(|flow| flow.state == FlowState::Terminated) {
            let acknowledged = flow.unacknowledged_psn.since(flow.undelivered_psn);
            let expected = flow.expected_psn.since(flow.unacknowledged_psn);
            assert!(expected >= 0, "acknowledged what did not come: {flow:?}");
            let is_kept = flow.stored_frames + flow.outstanding_reads > 0;
            assert!(acknowledged <= 0 || is_kept, "acknowledged and not kept: {flow:?}");
        }
    }

    fn pass(&mut self, by: Duration) {
        self.now += by;
        self.node.handle_timeout(self.now);
        self.pump();
    }

    /// Until it gives up, the box sends everything that it has acknowledged.
    fn check_delivery(&mut self) {
        self.room = usize::MAX;
        self.pump();
        let owed = |flow: &FlowStatus| {
            flow.state == FlowState::Terminated
                && flow.outstanding_reads == 0
                && flow.unacknowledged_psn.since(flow.undelivered_psn) > 0
        };
        let debts: Vec<FlowStatus> = self.node.flows().filter(|flow| owed(flow)).collect();
        let mut sent: HashSet<(Qpn, Psn)> = HashSet::new();
        let end = self.now + PATIENCE;
        while !debts.is_empty() && self.now < end {
            let Some(due) = self.node.poll_timeout() else { break };
            self.now = due.at.max(self.now + Duration::from_us(10));
            self.node.handle_timeout(self.now);
            for (side, bytes) in self.pump() {
                if side == WAN
                    && let Ok(Some((fields, _))) = Fields::read(&bytes)
                {
                    sent.insert((fields.bth.dest_qp, fields.bth.psn));
                }
            }
        }
        for debt in debts {
            let is_sent = sent.contains(&(debt.key.responder_qpn, debt.undelivered_psn));
            assert!(is_sent, "acknowledged, and never sent again: {debt:?}");
        }
    }

    /// PSN encoded by two bytes of a step.
    fn psn(&self, connection: usize, mode: u8, by: u8) -> Psn {
        let said = &self.said[connection];
        let by = i32::from(by as i8) as u32;
        let psn = match mode & 3 {
            0 => said.next.wrapping_add(by),
            1 => said.una.wrapping_add(by),
            2 => FIRST[connection].wrapping_add(by),
            _ => by << 16,
        };
        Psn::new(psn & 0xff_ffff)
    }
}

/// A packet to the connection's other end, entering by `side`.
fn packet(side: Side, connection: usize, opcode: Opcode, psn: Psn, len: usize) -> Fields {
    let mut fields = Fields::made_up(opcode, path_to(side), len, 8);
    fields.bth = Bth { pad: fields.bth.pad, ..Bth::new(opcode, qpn_to(side, connection), psn) };
    fields.payload = vec![psn.get() as u8; len];
    fields.reth =
        opcode.has_reth().then_some(Reth { virtual_address: 4096, rkey: RKey(7), len: len as u32 });
    fields.atomic = opcode.has_atomic().then_some(AtomicEth {
        virtual_address: 8,
        rkey: RKey(7),
        swap_or_add: 1,
        compare: 0,
    });
    fields.atomic_ack =
        (opcode.verb() == Some(Verb::AtomicAcknowledge)).then_some(AtomicAckEth { original: 5 });
    fields.aeth =
        opcode.has_aeth().then_some(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(0) });
    fields
}

/// A request encoded by a step. If it is the requester's next one, the requester advances.
fn request(play: &mut Play, side: Side, connection: usize, step: [u8; 6]) -> Vec<u8> {
    let [op, mode, by, len, flags, more] = step;
    let opcode = REQUESTS[usize::from(op) % REQUESTS.len()];
    let psn = play.psn(connection, mode, by);
    let len = match (opcode.verb(), opcode.ends_message()) {
        (Some(Verb::Send | Verb::Write), true) => usize::from(len) * 4,
        (Some(Verb::Send | Verb::Write), false) => 1024,
        _ => 0,
    };
    let mut fields =
        packet(side, connection, opcode, psn, if flags & 2 == 0 { len } else { len + 3 });
    fields.bth.ack_request = flags & 1 != 0;
    let read = opcode == Opcode::RC_READ_REQUEST;
    if let Some(reth) = fields.reth.as_mut()
        && (read || flags & 4 != 0)
    {
        reth.len = u32::from(more) << if flags & 8 == 0 { 5 } else { 24 };
    }
    let said = &mut play.said[connection];
    if side == LAN && psn.get() == said.next {
        let psns = if read { u32::from(more).div_ceil(32).max(1) } else { 1 };
        said.next = said.next.wrapping_add(psns) & 0xff_ffff;
        said.msn += u32::from(opcode.ends_message() || read);
    }
    fields.build()
}

/// An answer encoded by a step.
fn answer(play: &mut Play, side: Side, connection: usize, step: [u8; 6]) -> Vec<u8> {
    let [op, mode, by, syndrome, msn, len] = step;
    let psn = play.psn(connection, mode, by);
    let opcode = if op & 1 == 0 {
        Opcode::RC_ACK
    } else {
        RESPONSES[usize::from(op >> 1) % RESPONSES.len()]
    };
    let is_data = opcode.verb() == Some(Verb::ReadResponse);
    let mut fields =
        packet(side, connection, opcode, psn, if is_data { usize::from(len) * 4 } else { 0 });
    if let Some(aeth) = fields.aeth.as_mut() {
        aeth.syndrome = match syndrome & 7 {
            0..=2 => Syndrome::ACK_UNLIMITED,
            3 => Syndrome::Ack { credit_code: syndrome >> 3 },
            4 => Syndrome::RnrNak { timer_code: syndrome >> 3 },
            5 => Syndrome::Nak(NakCode::PsnSequence),
            6 => Syndrome::Nak(NakCode::RemoteAccess),
            _ => Syndrome::read(syndrome),
        };
        let said = &mut play.said[connection];
        aeth.msn = Msn::new(said.msn.wrapping_sub(u32::from(msn & 0x7f)) & 0xff_ffff);
        if msn & 0x80 != 0 {
            said.una = psn.get().wrapping_add(1) & 0xff_ffff;
        }
    }
    fields.build()
}

/// A connection manager message.
fn management(side: Side, connection: usize, step: [u8; 6]) -> Vec<u8> {
    let [kind, id, psn, mtu, qpn, _] = step;
    let (near, far) = (1 + u32::from(id & 3), 9 + u32::from(id >> 2 & 3));
    let psn_of =
        |connection: usize| Psn::new(FIRST[connection].wrapping_add(u32::from(psn)) & 0xff_ffff);
    let qpn =
        |side: Side| if qpn == 0 { qpn_to(side, connection) } else { Qpn::new(u32::from(qpn)) };
    let private_data = &[][..];
    let message = match kind % 5 {
        0 => Message::Req(Req {
            local_comm_id: near,
            service_id: 0x0106_4853,
            ca_guid: 1,
            qkey: 0,
            qpn: qpn(WAN),
            responder_resources: 16,
            initiator_depth: 16,
            remote_response_timeout: 20,
            transport: TransportService::Rc,
            flow_control: true,
            starting_psn: psn_of((connection + 1) % CONNECTIONS),
            local_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: if mtu == 0 { 3 } else { mtu & 15 },
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            primary: ReqPath::default(),
            alternate: ReqPath::default(),
            sap_supported: false,
            private_data,
        }),
        1 => Message::Rep(Rep {
            local_comm_id: far,
            remote_comm_id: near,
            qkey: 0,
            qpn: qpn(LAN),
            ee_context: 0,
            starting_psn: psn_of(connection),
            responder_resources: 16,
            initiator_depth: 16,
            target_ack_delay: 15,
            failover_accepted: 0,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: 2,
            private_data,
        }),
        2 => Message::Rtu(Rtu { local_comm_id: near, remote_comm_id: far, private_data }),
        3 => Message::Dreq(Dreq {
            local_comm_id: near,
            remote_comm_id: far,
            remote_qpn: qpn(LAN),
            private_data,
        }),
        _ => Message::Drep(Drep { local_comm_id: far, remote_comm_id: near, private_data }),
    };
    let mut mad: Mad = [0; 256];
    message.write(&Header::new(77), &mut mad);
    let mut fields = packet(side, connection, Opcode::UD_SEND_ONLY, Psn::new(0), mad.len());
    fields.bth.dest_qp = Qpn::GSI;
    fields.deth = Some(Deth { qkey: GSI_QKEY, reserved_8: 0, source_qp: Qpn::GSI });
    fields.payload = mad.to_vec();
    fields.build()
}

/// Valid and damaged frames enter by both sides in the order of the input, and time passes. The
/// first byte selects mode and role; a step is seven bytes: action, source and destination, and six
/// parameters. Memory stays bounded, no ACK names a packet that was never sent, and acknowledged
/// packets are kept and retransmitted until the box gives up.
pub fn accelerator(data: &[u8]) {
    let Some((&first, steps)) = data.split_first() else { return };
    let mut play = Play::new(first);
    if first & 8 != 0 {
        for (side, kind) in [(LAN, 0), (WAN, 1), (LAN, 2)] {
            play.give(side, management(side, 0, [kind, 0, 0, 0, 0, 0]));
        }
    }
    for chunk in steps.chunks(7).take(STEPS_MAX) {
        let mut step = [0; 7];
        step[..chunk.len()].copy_from_slice(chunk);
        let [what, rest @ ..] = step;
        let connection = usize::from(what >> 3 & 3) % CONNECTIONS;
        // Mostly from the usual side of such frames.
        let is_turned = what >> 5 & 7 == 7;
        let from = |side: Side| if is_turned { 1 - side } else { side };
        match what & 7 {
            0 | 1 => {
                let bytes = request(&mut play, from(LAN), connection, rest);
                play.give(from(LAN), bytes);
            }
            2 | 3 => {
                let bytes = answer(&mut play, from(WAN), connection, rest);
                play.give(from(WAN), bytes);
            }
            4 => {
                let side = if rest[0] % 5 == 1 || rest[0] % 5 == 4 { WAN } else { LAN };
                play.give(from(side), management(from(side), connection, rest));
            }
            5 => play.pass(Duration::from_us(u64::from(u16::from_be_bytes([rest[0], rest[1]])))),
            6 => {
                let side = usize::from(rest[0] & 1);
                let Some(mut bytes) = play.came[side].back().cloned() else { continue };
                let at = usize::from(u16::from_be_bytes([rest[1], rest[2]])) % bytes.len();
                bytes[at] ^= rest[3];
                bytes.truncate(bytes.len() - usize::from(rest[4]).min(bytes.len() - 1));
                play.give(if rest[0] & 2 == 0 { side } else { 1 - side }, bytes);
            }
            _ => {
                play.room = if rest[0] & 1 == 0 { usize::MAX } else { usize::from(rest[1] & 7) };
                play.node.set_draining(play.now, rest[0] & 0xfe == 0xfe);
            }
        }
    }
    play.check_delivery();
}
