//! Packets as words, and words as packets.

use crate::qp::{LOCAL_QPN, PEER_QPN};
use crate::{KEY, Line, template, template_v6};
use longhaul_node::Frame;
use longhaul_units::{Msn, Qpn, RKey};
use longhaul_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Head, NakCode, Opcode, Packet, PathTemplate, Reth,
    Split, Syndrome, Transport, split,
};
use longhaul_work::{Completion, CompletionOp, Emit};

/// Immediate data of all packets and work requests in scripts.
pub(crate) const IMMEDIATE: [u8; 4] = [1, 2, 3, 4];

/// The operations, by the low five bits of the opcode. Source: IBTA, volume 1, table 38.
const OPERATIONS: [(&str, u8); 23] = [
    ("send.first", 0x00),
    ("send.middle", 0x01),
    ("send.last", 0x02),
    ("send.last.imm", 0x03),
    ("send.only", 0x04),
    ("send.only.imm", 0x05),
    ("write.first", 0x06),
    ("write.middle", 0x07),
    ("write.last", 0x08),
    ("write.last.imm", 0x09),
    ("write.only", 0x0a),
    ("write.only.imm", 0x0b),
    ("read", 0x0c),
    ("resp.first", 0x0d),
    ("resp.middle", 0x0e),
    ("resp.last", 0x0f),
    ("resp.only", 0x10),
    ("ack", 0x11),
    ("atomic.ack", 0x12),
    ("cmp_swap", 0x13),
    ("fetch_add", 0x14),
    ("send.last.inv", 0x16),
    ("send.only.inv", 0x17),
];

/// An ACK's name by its syndrome.
const NAKS: [(&str, Syndrome); 6] = [
    ("nak.seq", Syndrome::Nak(NakCode::PsnSequence)),
    ("nak.invalid", Syndrome::Nak(NakCode::InvalidRequest)),
    ("nak.access", Syndrome::Nak(NakCode::RemoteAccess)),
    ("nak.op", Syndrome::Nak(NakCode::RemoteOperational)),
    ("nak.rd", Syndrome::Nak(NakCode::InvalidRd)),
    ("nak.reserved", Syndrome::Reserved(0xe0)),
];

/// A packet between two QPs.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Ethernet header to the last extended header.
    pub head: Vec<u8>,
    /// What follows the headers.
    pub payload: Vec<u8>,
}

/// Keeps the packets that are sent, and checks that each is a well-formed frame.
#[derive(Default)]
pub struct Wire(pub Vec<Sent>);

impl Emit for Wire {
    fn emit(&mut self, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        assert!(matches!(split(&bytes, bytes.len()), Ok(Split::Roce { payload_len, .. })
            if payload_len == frame.payload.len()));
        let payload = bytes[frame.head.len()..][..frame.payload.len()].to_vec();
        self.0.push(Sent { head: frame.head.to_vec(), payload });
    }
}

/// Extended headers of a packet; those that its opcode lacks are left out.
#[derive(Clone, Copy, Debug)]
pub struct Extended {
    /// WRITE and READ.
    pub reth: Reth,
    /// ACKs and READ responses.
    pub aeth: Aeth,
    /// Atomics.
    pub atomic: AtomicEth,
    /// An atomic's result.
    pub original: u64,
    /// Datagrams.
    pub deth: Deth,
    /// SEND with invalidate.
    pub invalidate: RKey,
}

impl Extended {
    /// Those that a line describes, for a payload of `len` bytes.
    fn of(line: &Line<'_>, syndrome: Syndrome, len: u64) -> Self {
        let (virtual_address, rkey) = (line.number("va", 0), line.rkey());
        Extended {
            reth: Reth { virtual_address, rkey, len: line.number("dma", len) as u32 },
            aeth: Aeth { syndrome, msn: Msn::new(line.number("msn", 0) as u32) },
            atomic: AtomicEth {
                virtual_address,
                rkey,
                swap_or_add: line.number("value", 0),
                compare: line.number("compare", 0),
            },
            original: line.number("found", 0),
            deth: Deth {
                qkey: line.number("qkey", 17) as u32,
                reserved_8: 0xff,
                source_qp: Qpn::new(PEER_QPN),
            },
            invalidate: RKey(line.number("inv", KEY.into()) as u32),
        }
    }
}

impl Default for Extended {
    fn default() -> Self {
        Extended::of(&Line::of(""), Syndrome::ACK_UNLIMITED, 0)
    }
}

/// Builds a packet.
pub fn packet(template: &PathTemplate, bth: &Bth, extended: &Extended, payload: Vec<u8>) -> Sent {
    let opcode = bth.opcode;
    let mut head = Head::begin(template, bth);
    if opcode.has_deth() {
        head.push_deth(&extended.deth);
    }
    if opcode.has_reth() {
        head.push_reth(&extended.reth);
    }
    if opcode.has_aeth() {
        head.push_aeth(&extended.aeth);
    }
    if opcode.has_atomic() {
        head.push_atomic(&extended.atomic);
    }
    if opcode == Opcode::RC_ATOMIC_ACK {
        head.push_atomic_ack(&AtomicAckEth { original: extended.original });
    }
    if opcode.has_immediate() {
        head.push_immediate(IMMEDIATE);
    } else if opcode.has_invalidate() {
        head.push_invalidate(extended.invalidate);
    }
    head.finish(template, payload.len());
    Sent { head: head.bytes().to_vec(), payload }
}

/// The packet that an `in` line names.
pub(crate) fn named(transport: Transport, line: &Line<'_>) -> Sent {
    let name = line.words[1];
    let (opcode, syndrome) = if let Some(number) = name.strip_prefix("raw") {
        (Opcode(number.parse().expect("an opcode")), Syndrome::ACK_UNLIMITED)
    } else if let Some((_, syndrome)) = NAKS.iter().find(|(n, _)| *n == name) {
        (Opcode::RC_ACK, *syndrome)
    } else if name == "rnr" {
        (Opcode::RC_ACK, Syndrome::RnrNak { timer_code: line.number("timer", 1) as u8 })
    } else {
        let operation = OPERATIONS.iter().find(|(n, _)| *n == name);
        let (_, operation) = operation.unwrap_or_else(|| panic!("in {name}"));
        let credit_code = line.number("credits", 31) as u8;
        (Opcode(first_opcode(transport) | operation), Syndrome::Ack { credit_code })
    };
    let psn = line.psn();
    let mut bth = Bth::new(opcode, Qpn::new(line.number("qpn", LOCAL_QPN.into()) as u32), psn);
    bth.ack_request = line.has("ackreq");
    bth.solicited = line.has("solicited");
    let len = line.number("len", 0);
    let template = if line.has("v6") { template_v6() } else { template() };
    let payload = vec![psn.get() as u8; len as usize];
    packet(&template, &bth, &Extended::of(line, syndrome, len), payload)
}

fn first_opcode(transport: Transport) -> u8 {
    match transport {
        Transport::Rc => 0x00,
        Transport::Uc => 0x20,
        Transport::Ud => 0x60,
        other => panic!("no scripts for {other:?}"),
    }
}

/// A packet that was sent, as words.
pub fn describe(sent: &Sent) -> String {
    let packet = Packet::parse(&sent.head).expect("valid headers").expect("a RoCE packet");
    let bth = packet.bth();
    let operation = OPERATIONS.iter().find(|(_, op)| *op == bth.opcode.0 & 0x1f);
    let mut name = operation.map_or("?", |(n, _)| n);
    let mut words = format!(" psn={} len={}", bth.psn, sent.payload.len());
    words += &format!(" to={} qpn={}", packet.destination_ip(), bth.dest_qp.get());
    words += &format!(" pkey={:x}", bth.pkey);
    if let Some(deth) = packet.deth() {
        words += &format!(" source={} qkey={}", deth.source_qp.get(), deth.qkey);
    }
    if let Some(aeth) = packet.aeth() {
        match aeth.syndrome {
            Syndrome::Ack { credit_code } => words += &format!(" credits={credit_code}"),
            Syndrome::RnrNak { timer_code } => {
                name = "rnr";
                words += &format!(" timer={timer_code}");
            }
            syndrome => {
                name = NAKS.iter().find(|(_, s)| *s == syndrome).map_or("nak.?", |(n, _)| n);
            }
        }
        words += &format!(" msn={}", aeth.msn);
    }
    if let Some(reth) = packet.reth() {
        words += &format!(" va={} dma={} rkey={}", reth.virtual_address, reth.len, reth.rkey.0);
    }
    if let Some(atomic) = packet.atomic_eth() {
        words += &format!(" va={} rkey={}", atomic.virtual_address, atomic.rkey.0);
        words += &format!(" value={} compare={}", atomic.swap_or_add, atomic.compare);
    }
    if let Some(atomic) = packet.atomic_ack_eth() {
        words += &format!(" found={}", atomic.original);
    }
    for (set, word) in [
        (bth.ack_request, " ackreq"),
        (bth.solicited, " solicited"),
        (bth.migreq, " migreq"),
        (has_immediate(packet.immediate()), " imm"),
    ] {
        words += if set { word } else { "" };
    }
    if let Some(&byte) = sent.payload.first()
        && sent.payload.iter().all(|&b| b == byte)
    {
        words += &format!(" is={byte:02x}");
    }
    name.to_string() + &words
}

/// A completion, as words.
pub(crate) fn outcome(c: &Completion) -> String {
    assert_eq!(c.qpn, Qpn::new(LOCAL_QPN));
    let is_receive = matches!(c.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate);
    let r = if is_receive { "r" } else { "" };
    let mut text = format!("{r}{} {:?} {:?} len={}", c.wr_id, c.status, c.op, c.byte_len);
    text += &format!(" peer={}", c.peer_qpn.get());
    for (is, word) in [
        (has_immediate(c.immediate), " imm"),
        (c.invalidated.is_some(), " inv"),
        (c.solicited, " solicited"),
        (c.grh.is_some(), " grh"),
    ] {
        text += if is { word } else { "" };
    }
    text
}

fn has_immediate(immediate: Option<[u8; 4]>) -> bool {
    assert!(immediate.is_none_or(|found| found == IMMEDIATE), "immediate data {immediate:?}");
    immediate.is_some()
}
