//! Arbitrary commands, requests, responses and box messages for a box that reads ahead.

use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_readahead::{Config, INNER, LAN, Protocol, RANGES_MAX, ReadAhead};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use longhaul_wire::mad::{
    GSI_QKEY, Header, MAD_LEN, Message, RdmaCmHeader, Rep, Req, ReqPath, ServiceId,
    TransportService,
};
use longhaul_wire::{Bth, Deth, Head, MacAddr, Opcode, Packet, Path, PathTemplate};
use std::net::IpAddr;

const STEPS_MAX: usize = 512;
const HELD_MAX: u64 = 1 << 20;
const INITIATOR: Qpn = Qpn::new(17);
const TARGET: Qpn = Qpn::new(18);
const PSN: u32 = 0xff_fff0;

/// Parses commands, calls and a connection's private data from any bytes.
pub fn announced(data: &[u8]) {
    for protocol in Protocol::ALL {
        if let Some(command) = protocol.command(data) {
            assert!(command.ranges().len() <= RANGES_MAX);
            assert!(!command.is_stable || command.is_whole);
        }
        let _ = (protocol.answered(data), protocol.is_spoken(data));
    }
}

fn path(from: u8, to: u8) -> Path {
    let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
    Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, from]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, to]),
        vlan: None,
        source_ip: ip(from),
        destination_ip: ip(to),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc000,
    }
}

/// Checks transmitted frames.
struct Checked;

impl Transmit for Checked {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return };
        let is_local = (0x1d..=0x1f).contains(&packet.opcode().0) && packet.bth().version == 1;
        assert!(side == INNER || !is_local, "what boxes say to each other reaches no host");
    }
}

struct Box {
    node: ReadAhead,
    now: Instant,
}

impl Box {
    /// A box with one connection whose initiator is on its LAN (hosts 1 and 2), and one whose
    /// target is (hosts 3 and 4).
    fn new() -> Self {
        let config = Config {
            held_bytes_max: HELD_MAX,
            range_bytes_max: HELD_MAX as u32 / 4,
            ranges_max: 16,
            queue_bytes_max: 1 << 20,
            ..Config::of(&Protocol::ALL)
        };
        let node = ReadAhead::new(config).expect("a configuration that is right");
        let mut node = Box { node, now: Instant::from_ns(1000) };
        node.connect(LAN, 1, 2);
        node.connect(INNER, 3, 4);
        node
    }

    fn connect(&mut self, side: Side, initiator: u8, target: u8) {
        let said = [0, 0, 1, 0, 128, 0, 127, 0];
        let [source, destination] = [initiator, target].map(|n| IpAddr::from([10, 0, 0, n]));
        let private_data =
            RdmaCmHeader { source_port: 9, source, destination }.with_user_data(&said);
        let req = Message::Req(Req {
            local_comm_id: 7,
            service_id: ServiceId::tcp(4420),
            ca_guid: 1,
            qkey: 0,
            qpn: INITIATOR,
            responder_resources: 4,
            initiator_depth: 0,
            remote_response_timeout: 20,
            transport: TransportService::Rc,
            flow_control: false,
            starting_psn: Psn::new(PSN),
            local_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: 1,
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            primary: ReqPath::default(),
            alternate: ReqPath::default(),
            sap_supported: false,
            private_data: private_data.as_ref().map_or(&[], |data| &data[..]),
        });
        let rep = Message::Rep(Rep {
            local_comm_id: 8,
            remote_comm_id: 7,
            qkey: 0,
            qpn: TARGET,
            ee_context: 0,
            starting_psn: Psn::new(PSN),
            responder_resources: 0,
            initiator_depth: 4,
            target_ack_delay: 0,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: 2,
            private_data: &[],
        });
        for (side, from, to, message) in
            [(side, initiator, target, req), (1 - side, target, initiator, rep)]
        {
            let mut mad = [0; MAD_LEN];
            message.write(&Header::new(5), &mut mad);
            let template = PathTemplate::new(&path(from, to));
            let mut head =
                Head::begin(&template, &Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0)));
            head.push_deth(&Deth { qkey: GSI_QKEY, reserved_8: 0, source_qp: Qpn::GSI });
            let pad_len = head.finish(&template, mad.len());
            self.give(side, head.bytes(), &mad, pad_len);
        }
        assert!(self.node.connections().count() > 0, "it knows the connection");
    }

    /// Passes a packet in the form of a port's frames, with a valid ICRC.
    fn give(&mut self, side: Side, head: &[u8], payload: &[u8], pad_len: u8) {
        let frame =
            Frame { head, payload: Payload::Bytes(payload), trailer: Trailer::Sealed { pad_len } };
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        let head = Head::copy_of(&bytes);
        match Frame::received(&head, &bytes) {
            Ok(frame) => self.node.handle_frame(self.now, side, &frame),
            Err(_) => self.node.handle_frame(self.now, side, &Frame::opaque(&bytes)),
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.node.poll_transmit(self.now, &mut Checked);
        assert!(self.node.held_bytes() <= HELD_MAX);
        let fetching = self.node.connections().map(|connection| connection.under_way);
        assert!(fetching.max() <= Some(512), "bounded");
    }
}

/// Packets of two connections, from any side.
///
/// A step: connection, side and direction; opcode; version, reserved bits; two bytes of PSN
/// distance; elapsed time; a length and as many bytes behind the BTH, extended headers included. If
/// selected, the payload is repeated up to 16 times that length.
pub fn read_ahead(data: &[u8]) {
    let mut node = Box::new();
    let mut rest = data;
    let mut take = |count: usize| {
        let (taken, behind) = rest.split_at(count.min(rest.len()));
        rest = behind;
        taken
    };
    for _ in 0..STEPS_MAX {
        let &[what, opcode, flags, p0, p1, time, len] = take(7) else { break };
        let body = take(usize::from(len));
        let (initiator, target) = if what & 1 == 0 { (1, 2) } else { (3, 4) };
        let (from, to, qpn) = if what & 2 == 0 {
            (initiator, target, TARGET)
        } else {
            (target, initiator, INITIATOR)
        };
        let side = usize::from(what >> 2 & 1);
        let psn = Psn::new(PSN.wrapping_add(i32::from(i16::from_be_bytes([p0, p1])) as u32));
        let bth = Bth {
            version: flags & 1,
            reserved_6: (flags & 0x20) >> 1,
            ack_request: flags & 2 != 0,
            ..Bth::new(Opcode(opcode & 0x1f), qpn, psn)
        };
        let template = PathTemplate::new(&path(from, to));
        let mut head = Head::begin(&template, &bth);
        let extended = Opcode(opcode & 0x1f).extended_len();
        // Words of the opcode's extended headers.
        for at in (0..extended).step_by(4) {
            let word = body.get(at..at + 4).and_then(|word| word.try_into().ok()).unwrap_or([0; 4]);
            head.push_immediate(word);
        }
        let payload = body.get(extended..).unwrap_or_default();
        let payload = payload.repeat(if what & 8 == 0 { 1 } else { 16 });
        let pad_len = head.finish(&template, payload.len());
        node.give(side, head.bytes(), &payload, pad_len);
        node.now += Duration::from_us(u64::from(time) * u64::from(time) * 100);
        if node.node.poll_timeout().is_some_and(|due| due.at <= node.now) {
            node.node.handle_timeout(node.now);
            node.settle();
        }
    }
    for _ in 0..STEPS_MAX {
        let Some(due) = node.node.poll_timeout() else { return };
        node.now = node.now.max(due.at);
        node.node.handle_timeout(node.now);
        node.settle();
    }
    panic!("it does not come to rest");
}
