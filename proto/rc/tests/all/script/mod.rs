//! Wire scripts: one QP, a line per event, a line per packet expected.
//!
//! ```text
//! config mtu=1024 psn=0 timeout=1ms retry=7    before anything else (adaptive=2ms too); what is
//!                                              left out keeps its default
//! post   write len=3000 imm                    requests are numbered 1, 2, …
//! recv   len=4096                              receives are numbered r1, r2, …
//! in     nak.seq psn=1                         a packet arrives
//! out    write.middle psn=1 !ackreq            the next packet that leaves; every word must hold,
//!                                              ! negates
//! quiet                                        nothing leaves
//! wait   1ms                                   time passes
//! done   1 Success                             the next completion
//! count  packet_seq_err 1                      a counter
//! mem    at=0 len=1024 is=01                   memory
//! set    at=8 value=5                          eight bytes of memory, as a number
//! word   at=8 is=5                             the same
//! flush                                        the responder's QP goes to the error state
//! release                                      the responder's QP is reset
//! in_use 1                                     receives waiting or taken
//! ```
//!
//! A script must name every packet and every completion: at its end nothing may be left. The
//! payload of a packet that comes in is filled with its PSN's low byte; local memory is filled with
//! `ee`.

use longhaul_node::{Frame, Gather, Payload};
use longhaul_rc::*;
use longhaul_units::{Duration, Instant, LKey, Msn, Psn, Qpn, RKey};
use longhaul_wire::*;
use longhaul_work::*;
use std::collections::HashMap;
use std::net::IpAddr;

/// Key of the one region, for both sides.
pub const KEY: u32 = 1;
pub const MEMORY: usize = 1 << 20;

pub struct Memory(pub Vec<u8>);

impl Gather for Memory {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = address as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

pub struct Device {
    pub memory: Memory,
    pub permits: bool,
    pub permits_atomics: bool,
    pub allows: bool,
    pub allows_atomics: bool,
    /// Added to every address that a peer names: memory that is aligned otherwise.
    pub shift: u64,
    pub completions: Vec<Completion>,
    pub counters: Counters,
}

impl Default for Device {
    fn default() -> Self {
        Device {
            memory: Memory(vec![0xee; MEMORY]),
            permits: true,
            permits_atomics: true,
            allows: true,
            allows_atomics: true,
            shift: 0,
            completions: Vec::new(),
            counters: Counters::default(),
        }
    }
}

impl Device {
    pub fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.memory.0[at..at + 8].try_into().unwrap())
    }
    pub fn set_word(&mut self, at: usize, value: u64) {
        self.memory.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

impl Context for Device {
    fn local(&self, lkey: LKey, address: u64, len: u32, _: Intent) -> Result<u64, Denied> {
        let fits = address.checked_add(len.into()).is_some_and(|end| end <= MEMORY as u64);
        if lkey.0 == KEY && fits { Ok(address) } else { Err(Denied) }
    }
    fn remote(
        &self,
        rkey: RKey,
        address: u64,
        len: u64,
        intent: RemoteIntent,
    ) -> Result<u64, Denied> {
        let fits = address.checked_add(len).is_some_and(|end| end <= MEMORY as u64);
        let allows = self.allows && (self.allows_atomics || intent != RemoteIntent::Atomic);
        if rkey.0 == KEY && fits && allows { Ok(address + self.shift) } else { Err(Denied) }
    }
    fn permits(&self, intent: RemoteIntent) -> bool {
        self.permits && (self.permits_atomics || intent != RemoteIntent::Atomic)
    }
    fn invalidate(&mut self, rkey: RKey) -> bool {
        rkey.0 == KEY
    }
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let at = address as usize;
        payload.copy_to(&mut self.memory.0[at..at + payload.len()]);
    }
    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        let found = self.word(address as usize);
        self.set_word(address as usize, found.wrapping_add(add));
        found
    }
    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let found = self.word(address as usize);
        if found == compare {
            self.set_word(address as usize, swap);
        }
        found
    }
    fn path(&self, _: AhId) -> Option<&PathTemplate> {
        None
    }
    fn gather(&self) -> &dyn Gather {
        &self.memory
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

/// Keeps what leaves as words.
pub struct Words(pub Vec<String>);

impl Emit for Words {
    fn emit(&mut self, frame: &Frame<'_>) {
        let packet = Packet::parse(frame.head).unwrap().unwrap();
        self.0.push(describe(&packet, frame.payload.len()));
    }
}

const OPCODES: [(&str, u8); 23] = [
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
    ("cmp_swap", 0x13),
    ("send.last.inv", 0x16),
    ("send.only.inv", 0x17),
    ("ack", 0x11),
    ("atomic.ack", 0x12),
    ("fetch_add", 0x14),
];

fn describe(packet: &Packet<'_>, len: usize) -> String {
    let bth = packet.bth();
    let mut name =
        OPCODES.iter().find(|(_, op)| *op == bth.opcode.0).map_or("?", |(n, _)| n).to_string();
    let mut words = format!(" psn={} len={len}", bth.psn);
    if let Some(aeth) = packet.aeth() {
        match aeth.syndrome {
            Syndrome::Ack { credit_code } => words += &format!(" credits={credit_code}"),
            Syndrome::RnrNak { timer_code } => {
                name = "rnr".into();
                words += &format!(" timer={timer_code}");
            }
            Syndrome::Nak(code) => {
                name = match code {
                    NakCode::PsnSequence => "nak.seq",
                    NakCode::InvalidRequest => "nak.invalid",
                    NakCode::RemoteAccess => "nak.access",
                    NakCode::RemoteOperational => "nak.op",
                    NakCode::InvalidRd => "nak.rd",
                }
                .into();
            }
            Syndrome::Reserved(b) => words += &format!(" reserved={b}"),
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
    if bth.ack_request {
        words += " ackreq";
    }
    if bth.solicited {
        words += " solicited";
    }
    if bth.migreq {
        words += " migreq";
    }
    name + &words
}

fn duration(text: &str) -> Duration {
    let digits = text.find(|c: char| !c.is_ascii_digit()).expect("a unit");
    let n: u64 = text[..digits].parse().unwrap();
    match &text[digits..] {
        "ns" => Duration::from_ns(n),
        "us" => Duration::from_us(n),
        "ms" => Duration::from_ms(n),
        unit => panic!("unit {unit}"),
    }
}

struct Fields<'a> {
    words: Vec<&'a str>,
    values: HashMap<&'a str, &'a str>,
}

impl<'a> Fields<'a> {
    fn of(line: &'a str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let values = words.iter().filter_map(|w| w.split_once('=')).collect();
        Fields { words, values }
    }
    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
    fn number(&self, key: &str, default: u64) -> u64 {
        self.values.get(key).map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{key}={v}")))
    }
}

pub struct Qp {
    pub now: Instant,
    pub device: Device,
    pub requester: Requester,
    pub responder: Responder,
    pub recv: RecvQueue,
    template: PathTemplate,
    posted: u64,
    received: u64,
    completed: usize,
}

pub fn template() -> PathTemplate {
    PathTemplate::new(&Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: IpAddr::from([10, 0, 0, 1]),
        destination_ip: IpAddr::from([10, 0, 0, 2]),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc000,
    })
}

impl Qp {
    fn new(f: &Fields<'_>) -> Self {
        let mtu = Mtu::from_code((f.number("mtu", 1024) / 256).ilog2() as u8 + 1).unwrap();
        let (qpn, dest_qpn) = (Qpn::new(0x11), Qpn::new(0x22));
        let psn = Psn::new(f.number("psn", 0) as u32);
        let mut requester = Requester::new(f.number("depth", 16) as u32, 4, 256);
        requester.start(RequesterConfig {
            qpn,
            dest_qpn,
            sq_psn: psn,
            mtu,
            max_rd_atomic: f.number("reads", 4) as u32,
            timeout: f.values.get("timeout").map(|t| duration(t)),
            adaptive_timeout: f.values.get("adaptive").map(|t| duration(t)),
            retry_cnt: f.number("retry", 7) as u8,
            rnr_retry: f.number("rnr_retry", 7) as u8,
            window_packets: f.number("window", 1 << 23) as u32,
            window_messages: f.number("messages", 1 << 20) as u32,
            ack_request_every: f.number("ack_request_every", 64) as u32,
            ack_request_at_window_end: !f.has("window_end_unasked"),
            probe_above: f.number("probe_above", u64::from(PROBE_ABOVE)) as u32,
            ack_request_phase: 0,
            timeout_stretch_max: 1,
            obey_credits: !f.has("ignore_credits"),
            migreq: f.has("migreq"),
            pkey: 0xffff,
        });
        let responder = Responder::new(ResponderConfig {
            qpn,
            dest_qpn,
            rq_psn: psn,
            mtu,
            max_dest_rd_atomic: f.number("dest_reads", 4) as u32,
            min_rnr_timer: f.number("min_rnr_timer", 1) as u8,
            ack_every: f.number("ack_every", 64) as u32,
            report_credits: f.has("report_credits"),
            migreq: f.has("migreq"),
            pkey: 0xffff,
        });
        let device = Device {
            permits: !f.has("rdma_off"),
            permits_atomics: !f.has("atomics_off"),
            allows: !f.has("access_off"),
            allows_atomics: !f.has("atomic_access_off"),
            shift: f.number("shift", 0),
            ..Device::default()
        };
        Qp {
            now: Instant::ZERO,
            device,
            requester,
            responder,
            recv: RecvQueue::new(16, 4),
            template: template(),
            posted: 0,
            received: 0,
            completed: 0,
        }
    }

    fn post(&mut self, f: &Fields<'_>) {
        self.posted += 1;
        let immediate = f.has("imm").then_some([1, 2, 3, 4]);
        let (remote_address, rkey) = (f.number("va", 0), RKey(f.number("rkey", KEY.into()) as u32));
        let op = match f.words[1] {
            "send" => SendOp::Send { immediate, invalidate: f.has("inv").then_some(RKey(9)) },
            "write" => SendOp::Write { remote_address, rkey, immediate },
            "read" => SendOp::Read { remote_address, rkey },
            "fetch_add" => SendOp::FetchAdd { remote_address, rkey, add: f.number("value", 0) },
            "cmp_swap" => SendOp::CmpSwap {
                remote_address,
                rkey,
                compare: f.number("compare", 0),
                swap: f.number("value", 0),
            },
            other => panic!("post {other}"),
        };
        let lkey = LKey(f.number("lkey", KEY.into()) as u32);
        let default_len = if matches!(f.words[1], "fetch_add" | "cmp_swap") { 8 } else { 0 };
        let sge =
            Sge { address: f.number("at", 0), len: f.number("len", default_len) as u32, lkey };
        let wr = SendWr {
            wr_id: self.posted,
            op,
            segments: &[sge],
            inline: f.has("inline"),
            signaled: !f.has("unsignaled"),
            solicited: f.has("solicited"),
            fence: f.has("fence"),
        };
        let posted = self.requester.post(&wr, false, &self.device.memory);
        if f.has("refused") {
            self.posted -= 1;
            assert!(posted.is_err());
        } else {
            posted.unwrap();
        }
    }

    fn arrive(&mut self, f: &Fields<'_>) {
        let psn = Psn::new(f.number("psn", 0) as u32);
        let (opcode, syndrome) = match f.words[1] {
            "ack" => (Opcode::RC_ACK, Syndrome::Ack { credit_code: f.number("credits", 31) as u8 }),
            "rnr" => (Opcode::RC_ACK, Syndrome::RnrNak { timer_code: f.number("timer", 1) as u8 }),
            "nak.seq" => (Opcode::RC_ACK, Syndrome::Nak(NakCode::PsnSequence)),
            "nak.invalid" => (Opcode::RC_ACK, Syndrome::Nak(NakCode::InvalidRequest)),
            "nak.access" => (Opcode::RC_ACK, Syndrome::Nak(NakCode::RemoteAccess)),
            "nak.op" => (Opcode::RC_ACK, Syndrome::Nak(NakCode::RemoteOperational)),
            "nak.reserved" => (Opcode::RC_ACK, Syndrome::Reserved(0xe0)),
            name => {
                let (_, op) =
                    OPCODES.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("in {name}"));
                (Opcode(*op), Syndrome::ACK_UNLIMITED)
            }
        };
        let mut bth = Bth::new(opcode, Qpn::new(0x11), psn);
        bth.ack_request = f.has("ackreq");
        bth.solicited = f.has("solicited");
        let len = f.number("len", 0) as usize;
        let mut head = Head::begin(&self.template, &bth);
        if opcode.has_reth() {
            head.push_reth(&Reth {
                virtual_address: f.number("va", 0),
                rkey: RKey(f.number("rkey", KEY.into()) as u32),
                len: f.number("dma", len as u64) as u32,
            });
        }
        let aeth = Aeth { syndrome, msn: Msn::new(f.number("msn", 0) as u32) };
        if opcode.has_aeth() {
            head.push_aeth(&aeth);
        }
        if opcode.has_atomic() {
            head.push_atomic(&AtomicEth {
                virtual_address: f.number("va", 0),
                rkey: RKey(f.number("rkey", KEY.into()) as u32),
                swap_or_add: f.number("value", 0),
                compare: f.number("compare", 0),
            });
        }
        let original = f.number("found", 0);
        if opcode == Opcode::RC_ATOMIC_ACK {
            head.push_atomic_ack(&AtomicAckEth { original });
        }
        if opcode.has_immediate() {
            head.push_immediate([1, 2, 3, 4]);
        } else if opcode.has_invalidate() {
            head.push_invalidate(RKey(f.number("inv", KEY.into()) as u32));
        }
        head.finish(&self.template, len);
        let bytes = vec![psn.get() as u8; len];
        let payload = Payload::Bytes(&bytes);
        let packet = Packet::parse(head.bytes()).unwrap().unwrap();
        match opcode.verb() {
            Some(Verb::Acknowledge) => {
                self.requester.handle_ack(self.now, psn, &aeth, &mut self.device)
            }
            Some(Verb::ReadResponse) => {
                let aeth = opcode.has_aeth().then_some(&aeth);
                self.requester.handle_read_response(
                    self.now,
                    psn,
                    opcode,
                    aeth,
                    &payload,
                    &mut self.device,
                );
            }
            Some(Verb::AtomicAcknowledge) => {
                self.requester.handle_atomic_ack(self.now, psn, &aeth, original, &mut self.device);
            }
            _ => self.responder.handle_request(
                &packet,
                &bth,
                &payload,
                &mut self.recv,
                &mut self.device,
            ),
        }
    }

    fn next_packet(&mut self) -> Option<String> {
        let mut words = Words(Vec::new());
        let sent =
            self.responder.transmit(&self.recv, &mut self.device, &self.template, &mut words)
                || self.requester.transmit(self.now, &mut self.device, &self.template, &mut words);
        assert_eq!(sent, words.0.len() == 1, "transmit said {sent}");
        words.0.pop()
    }

    fn next_completion(&mut self) -> Option<String> {
        let c = self.device.completions.get(self.completed)?;
        self.completed += 1;
        let r = if matches!(c.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate) {
            "r"
        } else {
            ""
        };
        let mut text = format!("{r}{} {:?} {:?} len={}", c.wr_id, c.status, c.op, c.byte_len);
        if c.immediate.is_some() {
            text += " imm";
        }
        if c.invalidated.is_some() {
            text += " inv";
        }
        if c.solicited {
            text += " solicited";
        }
        Some(text)
    }

    fn run(&mut self, line: &str) {
        let f = Fields::of(line);
        match f.words[0] {
            "post" => self.post(&f),
            "recv" => {
                self.received += 1;
                let len = f.number("len", 4096) as u32;
                let lkey = LKey(f.number("lkey", KEY.into()) as u32);
                let segments = [Sge { address: f.number("at", 0), len, lkey }];
                self.recv.post(&RecvWr { wr_id: self.received, segments: &segments }).unwrap();
            }
            "in" => self.arrive(&f),
            "out" => {
                let packet = self.next_packet().expect("a packet, but nothing left");
                holds(&f.words[1..], &packet);
            }
            "quiet" => assert_eq!(self.next_packet(), None),
            "wait" => {
                self.now += duration(f.words[1]);
                self.requester.handle_timeout(self.now, &mut self.device);
            }
            "done" => {
                let completion = self.next_completion().expect("a completion, but there is none");
                holds(&f.words[1..], &completion);
            }
            "count" => {
                let counter =
                    Counter::ALL.iter().find(|c| c.name() == f.words[1]).expect("a counter");
                assert_eq!(self.device.counters.get(*counter), f.words[2].parse::<u64>().unwrap());
            }
            "mem" => {
                let (at, len) = (f.number("at", 0) as usize, f.number("len", 1) as usize);
                let want = u8::from_str_radix(f.values["is"], 16).unwrap();
                let found = &self.device.memory.0[at..at + len];
                assert!(found.iter().all(|&b| b == want), "memory begins with {:02x}", found[0]);
            }
            "set" => self.device.set_word(f.number("at", 0) as usize, f.number("value", 0)),
            "word" => assert_eq!(self.device.word(f.number("at", 0) as usize), f.number("is", 0)),
            "flush" => self.responder.flush(&mut self.recv, &mut self.device),
            "release" => self.responder.release(&mut self.recv),
            "in_use" => assert_eq!(self.recv.in_use().to_string(), f.words[1]),
            "failed" => assert!(self.requester.is_failed()),
            "fault" => {
                assert_eq!(format!("{:?}", self.responder.fault().expect("a fault")), f.words[1])
            }
            "pause" => self.requester.pause(true),
            "resume" => self.requester.pause(false),
            "drained" => assert!(self.requester.is_drained()),
            "draining" => assert!(!self.requester.is_drained()),
            other => panic!("no such event: {other}"),
        }
    }
}

fn holds(wanted: &[&str], found: &str) {
    let words: Vec<_> = found.split_whitespace().collect();
    for &want in wanted {
        let right = match want.strip_prefix('!') {
            Some(not) => !words.contains(&not),
            None => words.contains(&want),
        };
        assert!(right, "wanted {want}, found: {found}");
    }
}

/// Runs a script; a failure names its line.
pub fn play(script: &str) {
    let lines: Vec<_> = script.lines().map(|l| l.split('#').next().unwrap_or("").trim()).collect();
    let config = lines.iter().find(|l| l.starts_with("config")).copied().unwrap_or("config");
    let mut qp = Qp::new(&Fields::of(config));
    for (number, line) in lines.iter().enumerate() {
        if line.is_empty() || line.starts_with("config") {
            continue;
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| qp.run(line)));
        if let Err(panic) = outcome {
            eprintln!("line {}: {line}", number + 1);
            std::panic::resume_unwind(panic);
        }
    }
    assert_eq!(qp.next_packet(), None, "left over at the end");
    assert_eq!(qp.next_completion(), None, "left over at the end");
}

/// Declares wire scripts as tests, grouped by the rule that they show.
#[macro_export]
macro_rules! scripts {
    ($($rule:ident { $($behaviour:ident: $script:literal;)+ })+) => {
        $(mod $rule {
            $(#[test]
            fn $behaviour() {
                $crate::script::play($script);
            })+
        })+
    };
}
