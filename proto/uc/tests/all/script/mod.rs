//! Wire scripts: one QP, a line per event, a line per packet expected.
//!
//! ```text
//! config mtu=256 psn=0                 before anything else; what is left out keeps its default
//! post   write len=3000 va=8 imm       requests are numbered 1, 2, …; pieces=N spreads the data
//!                                      over N segments
//! refuse read len=8                    a request that is not queued
//! recv   at=0 len=4096                 receives are numbered r1, r2, …
//! in     send.only psn=1 len=8         a packet arrives, filled with its PSN's low byte
//! out    write.middle psn=1 !solicited the next packet that leaves; every word must hold,
//!                                      ! negates
//! quiet                                nothing leaves
//! done   1 Success                     the next completion
//! count  out_of_buffer 1               a counter
//! mem    at=0 len=1024 is=01           memory, which begins as ee
//! deny / allow                         the one region goes away, and comes back
//! ```
//!
//! A script must name every packet and every completion: at its end nothing may be left.

use longhaul_node::{Frame, Gather, Payload};
use longhaul_uc::*;
use longhaul_units::{LKey, Psn, Qpn, RKey};
use longhaul_wire::*;
use longhaul_work::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

/// Key of the one region, for both sides.
pub const KEY: u32 = 1;
pub const MEMORY: usize = 1 << 16;

pub struct Memory(pub Vec<u8>);

impl Gather for Memory {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = address as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

pub struct Device {
    pub memory: Memory,
    /// Stretches that key [`KEY`] opens, for local and for remote use.
    pub local: Range<u64>,
    pub remote: Range<u64>,
    pub permits: bool,
    pub completions: Vec<Completion>,
    pub counters: Counters,
    /// What was asked for and not denied: nothing else may be written to.
    granted: RefCell<Vec<Range<u64>>>,
}

impl Default for Device {
    fn default() -> Self {
        Device {
            memory: Memory(vec![0xee; MEMORY]),
            local: 0..MEMORY as u64,
            remote: 0..MEMORY as u64,
            permits: true,
            completions: Vec::new(),
            counters: Counters::default(),
            granted: RefCell::default(),
        }
    }
}

impl Device {
    fn open(&self, region: &Range<u64>, key: u32, address: u64, len: u64) -> Result<u64, Denied> {
        let end = address.checked_add(len).ok_or(Denied)?;
        if key != KEY || address < region.start || end > region.end {
            return Err(Denied);
        }
        self.granted.borrow_mut().push(address..end);
        Ok(address)
    }
}

impl Context for Device {
    fn local(&self, lkey: LKey, address: u64, len: u32, _: Intent) -> Result<u64, Denied> {
        self.open(&self.local, lkey.0, address, len.into())
    }
    fn remote(&self, rkey: RKey, address: u64, len: u64, _: RemoteIntent) -> Result<u64, Denied> {
        self.open(&self.remote, rkey.0, address, len)
    }
    fn permits(&self, _: RemoteIntent) -> bool {
        self.permits
    }
    fn invalidate(&mut self, _: RKey) -> bool {
        panic!("an unreliable connection invalidates nothing")
    }
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let end = address + payload.len() as u64;
        let within = |granted: &Range<u64>| granted.start <= address && end <= granted.end;
        assert!(self.granted.borrow().iter().any(within), "{address}..{end} was never granted");
        payload.copy_to(&mut self.memory.0[address as usize..end as usize]);
    }
    fn fetch_add(&mut self, _: u64, _: u64) -> u64 {
        panic!("an unreliable connection has no atomics")
    }
    fn compare_swap(&mut self, _: u64, _: u64, _: u64) -> u64 {
        panic!("an unreliable connection has no atomics")
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

/// A packet as it travels.
#[derive(Clone, Debug)]
pub struct Sent {
    pub head: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Keeps what leaves.
#[derive(Default)]
pub struct Wire(pub Vec<Sent>);

impl Emit for Wire {
    fn emit(&mut self, frame: &Frame<'_>) {
        let mut payload = vec![0; frame.payload.len()];
        frame.payload.copy_to(&mut payload);
        self.0.push(Sent { head: frame.head.to_vec(), payload });
    }
}

/// Builds a packet; headers that its opcode has not are left out.
pub fn packet(bth: &Bth, reth: &Reth, payload: Vec<u8>) -> Sent {
    let template = template();
    let mut head = Head::begin(&template, bth);
    if bth.opcode.has_reth() {
        head.push_reth(reth);
    }
    if bth.opcode.has_immediate() {
        head.push_immediate([1, 2, 3, 4]);
    }
    head.finish(&template, payload.len());
    Sent { head: head.bytes().to_vec(), payload }
}

/// Both halves of a QP, with a device and a receive queue.
pub struct Qp {
    pub device: Device,
    pub requester: Requester,
    pub responder: Responder,
    pub recv: RecvQueue,
    pub posted: u64,
    pub received: u64,
    completed: usize,
}

impl Qp {
    pub fn new(mtu: Mtu, psn: Psn) -> Self {
        let (qpn, dest_qpn) = (Qpn::new(0x11), Qpn::new(0x22));
        let mut requester = Requester::new(16, 4, 512);
        requester.start(RequesterConfig {
            qpn,
            dest_qpn,
            sq_psn: psn,
            mtu,
            migreq: true,
            pkey: 0x9234,
        });
        let responder = Responder::new(ResponderConfig { qpn, dest_qpn, rq_psn: psn, mtu });
        Qp {
            device: Device::default(),
            requester,
            responder,
            recv: RecvQueue::new(64, 4),
            posted: 0,
            received: 0,
            completed: 0,
        }
    }

    pub fn post_receive(&mut self, at: u64, len: u32) {
        self.received += 1;
        let segments = [Sge { address: at, len, lkey: LKey(KEY) }];
        self.recv.post(&RecvWr { wr_id: self.received, segments: &segments }).unwrap();
    }

    pub fn transmit(&mut self) -> Option<Sent> {
        let mut wire = Wire::default();
        let can = self.requester.can_transmit();
        let sent = self.requester.transmit(&mut self.device, &template(), &mut wire);
        assert_eq!(sent, wire.0.len() == 1, "transmit said {sent}");
        assert!(can || !sent);
        wire.0.pop()
    }

    pub fn deliver(&mut self, sent: &Sent) {
        let packet = Packet::parse(&sent.head).unwrap().unwrap();
        let (bth, payload) = (packet.bth(), Payload::Bytes(&sent.payload));
        self.device.granted.get_mut().clear();
        self.responder.handle_request(&packet, &bth, &payload, &mut self.recv, &mut self.device);
    }

    pub fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.device.completions.get(self.completed).copied();
        self.completed += usize::from(completion.is_some());
        completion
    }

    fn post(&mut self, f: &Fields<'_>) -> Result<(), SendRefused> {
        let immediate = f.has("imm").then_some([1, 2, 3, 4]);
        let (remote_address, rkey) = (f.number("va", 0), RKey(KEY));
        let op = match f.words[1] {
            "send" => SendOp::Send { immediate, invalidate: f.has("inv").then_some(RKey(9)) },
            "write" => SendOp::Write { remote_address, rkey, immediate },
            "read" => SendOp::Read { remote_address, rkey },
            "fetch_add" => SendOp::FetchAdd { remote_address, rkey, add: 1 },
            "cmp_swap" => SendOp::CmpSwap { remote_address, rkey, compare: 0, swap: 1 },
            "datagram" => SendOp::Datagram { destination: Destination::default(), immediate },
            other => panic!("post {other}"),
        };
        let (mut at, len, pieces) = (f.number("at", 0), f.number("len", 0), f.number("pieces", 1));
        let mut segments = Vec::new();
        for piece in 0..pieces {
            let here = len / pieces + if piece + 1 == pieces { len % pieces } else { 0 };
            let lkey = LKey(f.number("lkey", KEY.into()) as u32);
            segments.push(Sge { address: at, len: here as u32, lkey });
            at += here;
        }
        let wr = SendWr {
            wr_id: self.posted + 1,
            op,
            segments: &segments,
            inline: f.has("inline"),
            signaled: !f.has("unsignaled"),
            solicited: f.has("solicited"),
            fence: f.has("fence"),
        };
        self.requester.post(&wr, f.has("signal_all"), &self.device.memory)?;
        self.posted += 1;
        Ok(())
    }

    fn arrive(&mut self, f: &Fields<'_>) {
        let opcode = match f.words[1].strip_prefix("raw") {
            Some(number) => Opcode(number.parse().unwrap()),
            None => OPCODES.iter().find(|(n, _)| *n == f.words[1]).expect("an opcode").1,
        };
        let psn = Psn::new(f.number("psn", 0) as u32);
        let mut bth = Bth::new(opcode, Qpn::new(0x11), psn);
        bth.solicited = f.has("solicited");
        let len = f.number("len", 0);
        let rkey = RKey(f.number("rkey", KEY.into()) as u32);
        let reth =
            Reth { virtual_address: f.number("va", 0), rkey, len: f.number("dma", len) as u32 };
        self.deliver(&packet(&bth, &reth, vec![psn.get() as u8; len as usize]));
    }

    fn run(&mut self, line: &str) {
        let f = Fields::of(line);
        match f.words[0] {
            "post" => self.post(&f).unwrap(),
            "refuse" => assert!(self.post(&f).is_err()),
            "recv" => self.post_receive(f.number("at", 0), f.number("len", 4096) as u32),
            "in" => self.arrive(&f),
            "out" => holds(
                &f.words[1..],
                &describe(&self.transmit().expect("a packet, but nothing left")),
            ),
            "quiet" => assert!(self.transmit().is_none()),
            "done" => {
                let completion = self.next_completion().expect("a completion, but there is none");
                holds(&f.words[1..], &outcome(&completion));
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
            "deny" => (self.device.local, self.device.remote) = (0..0, 0..0),
            "allow" => {
                (self.device.local, self.device.remote) = (0..MEMORY as u64, 0..MEMORY as u64);
            }
            "forbid" => self.device.permits = false,
            "failed" => assert!(self.requester.is_failed()),
            "recover" => self.requester.recover(),
            "fault" => {
                assert_eq!(format!("{:?}", self.responder.fault().expect("a fault")), f.words[1])
            }
            "flush" => {
                self.requester.flush(&mut self.device);
                self.responder.flush(&mut self.recv, &mut self.device);
            }
            "release" => self.responder.release(&mut self.recv),
            "receives" => {
                let state = format!("waiting={} in_use={}", self.recv.len(), self.recv.in_use());
                holds(&f.words[1..], &state);
            }
            "pause" => self.requester.pause(true),
            "resume" => self.requester.pause(false),
            "drained" => assert_eq!(self.requester.is_drained(), f.words[1] == "yes"),
            "idle" => assert_eq!(self.requester.is_idle(), f.words[1] == "yes"),
            other => panic!("no such event: {other}"),
        }
    }
}

const OPCODES: [(&str, Opcode); 12] = [
    ("send.first", Opcode::UC_SEND_FIRST),
    ("send.middle", Opcode::UC_SEND_MIDDLE),
    ("send.last", Opcode::UC_SEND_LAST),
    ("send.last.imm", Opcode::UC_SEND_LAST_IMM),
    ("send.only", Opcode::UC_SEND_ONLY),
    ("send.only.imm", Opcode::UC_SEND_ONLY_IMM),
    ("write.first", Opcode::UC_WRITE_FIRST),
    ("write.middle", Opcode::UC_WRITE_MIDDLE),
    ("write.last", Opcode::UC_WRITE_LAST),
    ("write.last.imm", Opcode::UC_WRITE_LAST_IMM),
    ("write.only", Opcode::UC_WRITE_ONLY),
    ("write.only.imm", Opcode::UC_WRITE_ONLY_IMM),
];

fn describe(sent: &Sent) -> String {
    let packet = Packet::parse(&sent.head).unwrap().unwrap();
    let bth = packet.bth();
    let name = OPCODES.iter().find(|(_, op)| *op == bth.opcode).map_or("?", |(n, _)| n);
    let (psn, len, to) = (bth.psn, sent.payload.len(), bth.dest_qp);
    let mut words = format!("{name} psn={psn} len={len} to={to} pkey={:x}", bth.pkey);
    if let Some(reth) = packet.reth() {
        words += &format!(" va={} dma={} rkey={}", reth.virtual_address, reth.len, reth.rkey.0);
    }
    for (set, word) in
        [(bth.ack_request, "ackreq"), (bth.solicited, "solicited"), (bth.migreq, "migreq")]
    {
        words += &if set { format!(" {word}") } else { String::new() };
    }
    if packet.immediate() == Some([1, 2, 3, 4]) {
        words += " imm";
    }
    // Where all bytes are the same, which.
    match sent.payload.first() {
        Some(&byte) if sent.payload.iter().all(|&b| b == byte) => {
            words + &format!(" is={byte:02x}")
        }
        _ => words,
    }
}

fn outcome(c: &Completion) -> String {
    let r = if matches!(c.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate) {
        "r"
    } else {
        ""
    };
    let mut text = format!("{r}{} {:?} {:?} len={}", c.wr_id, c.status, c.op, c.byte_len);
    if c.immediate == Some([1, 2, 3, 4]) {
        text += " imm";
    }
    if c.solicited {
        text += " solicited";
    }
    text
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
    let config =
        Fields::of(lines.iter().find(|l| l.starts_with("config")).copied().unwrap_or("config"));
    let mtu = Mtu::from_code((config.number("mtu", 256) / 256).ilog2() as u8 + 1).unwrap();
    let mut qp = Qp::new(mtu, Psn::new(config.number("psn", 0) as u32));
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
    assert!(qp.transmit().is_none(), "left over at the end");
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
