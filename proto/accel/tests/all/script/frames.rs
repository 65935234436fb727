//! Conversion between frames and the text of scripts.

use longhaul_accel::LAN;
use longhaul_node::{Frame, Payload, Side, Trailer};
use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::mad::{
    Drep, Dreq, Ece, GSI_QKEY, Header, Mad, Message, Opaque, Rep, Req, ReqPath, Rtu,
    TransportService, gid_of_ip,
};
use longhaul_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Head, MacAddr, NakCode, Opcode, Packet, Path,
    PathTemplate, Position, Reth, Syndrome, Udp, Verb, credit_code, credits,
};
use std::net::{IpAddr, Ipv4Addr};

pub const REQUESTER_QPN: u32 = 0x11;
pub const RESPONDER_QPN: u32 = 0x22;
pub const REQUESTER_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
pub const RESPONDER_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// Both hosts' addresses on an alternate path.
pub const ALTERNATE_IPS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2))];

fn alternate_path() -> ReqPath {
    let [local_gid, remote_gid] = ALTERNATE_IPS.map(gid_of_ip);
    ReqPath {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid,
        remote_gid,
        hop_limit: 64,
        ..ReqPath::default()
    }
}

/// Body of a LAP behind the ids, from the host that sends on `path`: reserved bytes, a QPN and
/// LIDs, the GIDs, the rest.
fn lap_rest(path: &Path) -> [u8; 224] {
    let [mut sender, mut receiver] = ALTERNATE_IPS;
    if path.source_ip == RESPONDER_IP {
        (sender, receiver) = (receiver, sender);
    }
    let mut rest = [0; 224];
    rest[12..16].fill(0xff);
    rest[16..32].copy_from_slice(&gid_of_ip(sender));
    rest[32..48].copy_from_slice(&gid_of_ip(receiver));
    rest
}

/// Frame formats of both hosts.
pub struct Wire {
    pub requester: Path,
    pub responder: Path,
    pub responder_migreq: bool,
    pub requester_qpn: u32,
    pub responder_qpn: u32,
}

impl Default for Wire {
    fn default() -> Self {
        let requester = Path {
            source_mac: MacAddr([2, 0, 10, 77, 0, 1]),
            destination_mac: MacAddr([2, 0, 10, 77, 0, 2]),
            vlan: None,
            source_ip: REQUESTER_IP,
            destination_ip: RESPONDER_IP,
            traffic_class: 104,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc011,
        };
        Wire {
            requester,
            responder: Path { udp_source_port: 0xc022, hop_limit: 61, ..requester.reversed() },
            responder_migreq: true,
            requester_qpn: REQUESTER_QPN,
            responder_qpn: RESPONDER_QPN,
        }
    }
}

const OPCODES: &[(&str, Opcode)] = &[
    ("send_first", Opcode::RC_SEND_FIRST),
    ("send_middle", Opcode::RC_SEND_MIDDLE),
    ("send_last", Opcode::RC_SEND_LAST),
    ("send_only", Opcode::RC_SEND_ONLY),
    ("write_first", Opcode::RC_WRITE_FIRST),
    ("write_middle", Opcode::RC_WRITE_MIDDLE),
    ("write_last", Opcode::RC_WRITE_LAST),
    ("write_only", Opcode::RC_WRITE_ONLY),
    ("read", Opcode::RC_READ_REQUEST),
    ("read_first", Opcode::RC_READ_RESPONSE_FIRST),
    ("read_middle", Opcode::RC_READ_RESPONSE_MIDDLE),
    ("read_last", Opcode::RC_READ_RESPONSE_LAST),
    ("read_only", Opcode::RC_READ_RESPONSE_ONLY),
    ("atomic", Opcode::RC_FETCH_ADD),
    ("atomic_ack", Opcode::RC_ATOMIC_ACK),
    ("ack", Opcode::RC_ACK),
    ("rnr", Opcode::RC_ACK),
    ("nak", Opcode::RC_ACK),
    ("reserved", Opcode::RC_ACK),
    ("cnp", Opcode::CNP),
];

const NAKS: &[(&str, NakCode)] = &[
    ("sequence", NakCode::PsnSequence),
    ("invalid", NakCode::InvalidRequest),
    ("access", NakCode::RemoteAccess),
    ("operational", NakCode::RemoteOperational),
];

/// Words of one line, with `name=value` pairs.
struct Words<'a>(Vec<&'a str>);

impl Words<'_> {
    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn value(&self, name: &str) -> Option<u32> {
        let pair = self.0.iter().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
        pair.map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v}")))
    }
}

impl Wire {
    pub fn requester_frame(&self, line: &str) -> Vec<u8> {
        let words = Words(line.split_whitespace().collect());
        damaged(self.build(&self.requester, self.responder_qpn, false, &words), &words)
    }

    pub fn responder_frame(&self, line: &str) -> Vec<u8> {
        let words = Words(line.split_whitespace().collect());
        let migreq = self.responder_migreq;
        damaged(self.build(&self.responder, self.requester_qpn, migreq, &words), &words)
    }

    fn build(&self, path: &Path, dest_qp: u32, migreq: bool, words: &Words<'_>) -> Vec<u8> {
        let name = words.0[0];
        if ["req", "rep", "rtu", "dreq", "drep", "lap"].contains(&name) {
            return self.management(path, migreq, name, words);
        }
        let opcode =
            OPCODES.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}?")).1;
        let psn: u32 = words.0[1].parse().expect("a PSN");
        let len = words.value("len").unwrap_or(usual_len(opcode));
        let mut bth = Bth::new(opcode, Qpn::new(dest_qp), Psn::new(psn));
        bth.ack_request = words.has("A");
        bth.migreq = migreq;
        bth.fecn = words.has("fecn");
        let template = PathTemplate::new(path);
        let mut head = Head::begin(&template, &bth);
        if opcode.has_reth() {
            let dma = words.value("dma").unwrap_or(len);
            head.push_reth(&Reth { virtual_address: 0x1000, rkey: RKey(7), len: dma });
        }
        if opcode.has_atomic() {
            head.push_atomic(&AtomicEth {
                virtual_address: 8,
                rkey: RKey(7),
                swap_or_add: 1,
                compare: 0,
            });
        }
        if opcode.has_aeth() {
            head.push_aeth(&Aeth {
                syndrome: syndrome(name, words),
                msn: Msn::new(words.value("msn").unwrap_or(0)),
            });
        }
        if opcode == Opcode::RC_ATOMIC_ACK {
            head.push_atomic_ack(&AtomicAckEth { original: 5 });
        }
        let payload: Vec<u8> = (0..len).map(|i| (psn + i) as u8).collect();
        seal(head, &template, &payload)
    }

    fn management(&self, path: &Path, migreq: bool, name: &str, words: &Words<'_>) -> Vec<u8> {
        let mut mad: Mad = [0; 256];
        let mtu = words.value("mtu").unwrap_or(1024);
        let private_data = &[][..];
        let of = |n: &str, or: u32| words.value(n).unwrap_or(or);
        let message = match name {
            "req" => Message::Req(Req {
                local_comm_id: of("id", 1),
                service_id: 0x0106_4853,
                ca_guid: 1,
                qkey: 0,
                qpn: Qpn::new(self.requester_qpn),
                responder_resources: 16,
                initiator_depth: 16,
                remote_response_timeout: 20,
                transport: TransportService::Rc,
                flow_control: true,
                starting_psn: Psn::new(of("rpsn", 9000)),
                local_response_timeout: 20,
                retry_count: 7,
                pkey: 0xffff,
                path_mtu: (mtu / 128).trailing_zeros() as u8,
                rdc_exists: false,
                rnr_retry_count: 7,
                max_cm_retries: 15,
                srq: false,
                primary: ReqPath::default(),
                alternate: if words.has("alternate") {
                    alternate_path()
                } else {
                    ReqPath::default()
                },
                sap_supported: false,
                private_data,
            }),
            "rep" => Message::Rep(Rep {
                local_comm_id: of("rid", 2),
                remote_comm_id: of("id", 1),
                qkey: 0,
                qpn: Qpn::new(self.responder_qpn),
                ee_context: 0,
                starting_psn: Psn::new(of("psn", 100)),
                responder_resources: 16,
                initiator_depth: 16,
                target_ack_delay: 15,
                failover_accepted: of("failover", 0) as u8,
                flow_control: true,
                rnr_retry_count: 7,
                srq: false,
                ca_guid: 2,
                private_data,
            }),
            "rtu" => Message::Rtu(Rtu {
                local_comm_id: of("id", 1),
                remote_comm_id: of("rid", 2),
                private_data,
            }),
            "dreq" => Message::Dreq(Dreq {
                local_comm_id: of("id", 1),
                remote_comm_id: of("rid", 2),
                remote_qpn: Qpn::new(self.responder_qpn),
                private_data,
            }),
            "lap" => Message::Lap(Opaque {
                local_comm_id: of("id", 1),
                remote_comm_id: of("rid", 2),
                rest: &lap_rest(path),
            }),
            _ => Message::Drep(Drep {
                local_comm_id: of("rid", 2),
                remote_comm_id: of("id", 1),
                private_data,
            }),
        };
        message.write(&Header::new(77), &mut mad);
        if let Some(options) = words.value("ece") {
            Ece { vendor_id: 0x15b3, options }.write(&mut mad, message.attribute());
        }
        let mut bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0));
        bth.migreq = migreq;
        let template = PathTemplate::new(path);
        let mut head = Head::begin(&template, &bth);
        head.push_deth(&Deth { qkey: GSI_QKEY, reserved_8: 0, source_qp: Qpn::GSI });
        seal(head, &template, &mad)
    }
}

/// Damages a frame as one of the words says. The ICRC of a frame with a wrong sum is right.
fn damaged(mut bytes: Vec<u8>, words: &Words<'_>) -> Vec<u8> {
    let udp = Udp::find(&bytes).expect("UDP");
    if words.has("damaged") {
        *bytes.last_mut().expect("an ICRC") ^= 1;
    }
    if words.has("wrong_address") {
        let before = bytes.clone();
        bytes[udp.ip + 15] ^= 1;
        // With the checksum of the wrong address, only the ICRC shows it.
        let by = i32::from(bytes[udp.ip + 15]) - i32::from(before[udp.ip + 15]);
        let sum = i32::from(u16::from_be_bytes([bytes[udp.ip + 10], bytes[udp.ip + 11]]));
        let sum = u16::try_from(sum - by).expect("no carry");
        bytes[udp.ip + 10..][..2].copy_from_slice(&sum.to_be_bytes());
        assert!(udp.ip_checksum_is_right(&bytes));
    }
    if words.has("wrong_ttl") {
        bytes[udp.ip + 8] ^= 0x10;
    }
    if words.has("wrong_dscp") {
        bytes[udp.ip + 1] ^= 0x80;
    }
    if words.has("wrong_udp_sum") {
        udp.set_checksum(&mut bytes, 0x1234);
    }
    bytes
}

pub fn seal(mut head: Head, template: &PathTemplate, payload: &[u8]) -> Vec<u8> {
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

/// Default payload length, in bytes.
fn usual_len(opcode: Opcode) -> u32 {
    match (opcode.verb(), opcode.position()) {
        (
            Some(Verb::Send | Verb::Write | Verb::ReadResponse),
            Position::First | Position::Middle,
        ) => 1024,
        (Some(Verb::Send | Verb::Write | Verb::ReadResponse), _) => 64,
        _ => 0,
    }
}

fn syndrome(name: &str, words: &Words<'_>) -> Syndrome {
    match name {
        "reserved" => Syndrome::Reserved(words.value("byte").unwrap_or(0x7f) as u8),
        "rnr" => Syndrome::RnrNak { timer_code: words.value("timer").unwrap_or(1) as u8 },
        "nak" => {
            let code = NAKS.iter().find(|(n, _)| words.has(n)).expect("a NAK code").1;
            Syndrome::Nak(code)
        }
        _ => Syndrome::Ack { credit_code: words.value("credits").map_or(31, credit_code) },
    }
}

/// The script line of a frame.
pub fn describe(side: Side, bytes: &[u8]) -> String {
    let side = if side == LAN { "lan" } else { "wan" };
    let head = Head::copy_of(bytes);
    let frame = match Frame::received(&head, bytes) {
        Ok(frame) => frame,
        Err(error) => return format!("{side} malformed {error}"),
    };
    let Ok(Some(packet)) = Packet::parse(frame.head) else {
        return format!("{side} other len={}", bytes.len());
    };
    let mut text = format!("{side} {}", describe_packet(&packet, &frame));
    if !frame.icrc_is_right() {
        text.push_str(" damaged");
    } else if !frame.is_intact() {
        text.push_str(" missummed");
    }
    text
}

fn describe_packet(packet: &Packet<'_>, frame: &Frame<'_>) -> String {
    let bth = packet.bth();
    if bth.opcode == Opcode::UD_SEND_ONLY {
        let mad = frame.payload.as_bytes().and_then(|b| <&Mad>::try_from(b).ok()).expect("a MAD");
        let (_, message) = Message::read(mad).expect("CM");
        let name = message.attribute().name().to_lowercase();
        return match Ece::read(mad, message.attribute()).filter(|ece| *ece != Ece::NONE) {
            Some(ece) => format!("{name} ece={}", ece.options),
            None => name,
        };
    }
    let name = match packet.aeth().map(|aeth| aeth.syndrome) {
        Some(Syndrome::Nak(_)) => "nak",
        Some(Syndrome::Reserved(_)) => "reserved",
        Some(Syndrome::RnrNak { .. }) => "rnr",
        _ => OPCODES
            .iter()
            .find(|(_, opcode)| *opcode == bth.opcode)
            .map_or("unknown", |(name, _)| *name),
    };
    let mut text = format!("{name} {}", bth.psn);
    if bth.ack_request {
        text.push_str(" A");
    }
    if frame.payload.len() != usual_len(bth.opcode) as usize {
        text.push_str(&format!(" len={}", frame.payload.len()));
    }
    if let Some(reth) = packet.reth().filter(|_| bth.opcode == Opcode::RC_READ_REQUEST) {
        text.push_str(&format!(" dma={}", reth.len));
    }
    if let Some(aeth) = packet.aeth() {
        if let Syndrome::Nak(code) = aeth.syndrome {
            text.push(' ');
            text.push_str(NAKS.iter().find(|(_, c)| *c == code).expect("known").0);
        }
        text.push_str(&format!(" msn={}", aeth.msn));
        if let Syndrome::Ack { credit_code } = aeth.syndrome
            && let Some(credits) = credits(credit_code)
        {
            text.push_str(&format!(" credits={credits}"));
        }
    }
    text
}
