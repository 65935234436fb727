//! Wire scripts: one QP, a line per event, a line per packet expected.
//!
//! ```text
//! config mtu=1024 psn=0 qkey=17                before anything else; what is left out keeps its
//!                                              default
//! post   len=300 ah=1 qpn=34 qkey=17 imm       requests are numbered 1, 2, …; op=write posts
//!                                              something else
//! refuse len=300 inline                        a request that must not be queued
//! recv   at=1000 len=4096 parts=2              receives are numbered r1, r2, …
//! in     send psn=1 len=4 qkey=17 v6           a datagram arrives
//! out    send.imm psn=1 !solicited             the next packet that leaves; every word must hold,
//!                                              ! negates
//! quiet                                        nothing leaves
//! done   1 Success                             the next completion
//! count  qkey_viol_cntr 1                      a counter
//! mem    at=0 len=1024 is=01                   memory
//! header at=1000 from=10.0.0.1                 a receive's first 40 bytes
//! ```
//!
//! A script must name every packet and every completion: at its end nothing may be left. The
//! payload of a packet that comes in is filled with its PSN's low byte; local memory is filled with
//! `ee`. Address handle 1 is for an IPv4 peer, 2 for an IPv6 peer; there are no others.

use longhaul_node::{Frame, Gather, Payload};
use longhaul_ud::*;
use longhaul_units::{LKey, Psn, Qpn, RKey};
use longhaul_wire::*;
use longhaul_work::*;
use std::collections::HashMap;
use std::net::IpAddr;

/// Key of the one region.
pub const KEY: u32 = 1;
pub const MEMORY: usize = 1 << 16;
pub const QPN: u32 = 0x11;
pub const PEER: u32 = 0x22;

pub struct Memory(pub Vec<u8>);

impl Gather for Memory {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = address as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

pub struct Device {
    pub memory: Memory,
    pub paths: Vec<PathTemplate>,
    pub completions: Vec<Completion>,
    pub counters: Counters,
}

impl Default for Device {
    fn default() -> Self {
        Device {
            memory: Memory(vec![0xee; MEMORY]),
            paths: vec![template(false), template(true)],
            completions: Vec::new(),
            counters: Counters::default(),
        }
    }
}

impl Context for Device {
    fn local(&self, lkey: LKey, address: u64, len: u32, _: Intent) -> Result<u64, Denied> {
        let fits = address.checked_add(len.into()).is_some_and(|end| end <= MEMORY as u64);
        if lkey.0 == KEY && fits { Ok(address) } else { Err(Denied) }
    }
    fn remote(&self, _: RKey, _: u64, _: u64, _: RemoteIntent) -> Result<u64, Denied> {
        panic!("a datagram reaches no remote memory")
    }
    fn permits(&self, _: RemoteIntent) -> bool {
        panic!("a datagram needs no permission")
    }
    fn invalidate(&mut self, _: RKey) -> bool {
        panic!("a datagram invalidates nothing")
    }
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let at = address as usize;
        payload.copy_to(&mut self.memory.0[at..at + payload.len()]);
    }
    fn fetch_add(&mut self, _: u64, _: u64) -> u64 {
        panic!("a datagram is no atomic")
    }
    fn compare_swap(&mut self, _: u64, _: u64, _: u64) -> u64 {
        panic!("a datagram is no atomic")
    }
    fn path(&self, ah: AhId) -> Option<&PathTemplate> {
        self.paths.get((ah.0 as usize).checked_sub(1)?)
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

/// Headers from 10.0.0.1 or fd00::1 to the second address of the same net.
pub fn template(v6: bool) -> PathTemplate {
    let ip = |host: u8| match v6 {
        false => IpAddr::from([10, 0, 0, host]),
        true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)]),
    };
    PathTemplate::new(&Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: ip(1),
        destination_ip: ip(2),
        traffic_class: 0x68,
        hop_limit: 63,
        flow_label: if v6 { 0xabcde } else { 0 },
        udp_source_port: 0xc000,
    })
}

/// Keeps what leaves as words, and checks that it is a right frame.
struct Words(Vec<String>);

impl Emit for Words {
    fn emit(&mut self, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        assert!(matches!(split(&bytes, bytes.len()), Ok(Split::Roce { payload_len, .. })
            if payload_len == frame.payload.len()));
        let packet = Packet::parse(frame.head).unwrap().unwrap();
        let (bth, deth) = (packet.bth(), packet.deth().unwrap());
        assert!(!bth.ack_request);
        let name = match bth.opcode {
            Opcode::UD_SEND_ONLY => "send",
            Opcode::UD_SEND_ONLY_IMM => "send.imm",
            other => panic!("{other:?} left"),
        };
        let mut words = format!("{name} psn={} len={}", bth.psn, frame.payload.len());
        words += &format!(
            " qpn={} source={} qkey={}",
            bth.dest_qp.get(),
            deth.source_qp.get(),
            deth.qkey
        );
        words += &format!(" to={} pkey={:x}", packet.destination_ip(), bth.pkey);
        for (is, word) in [(bth.solicited, " solicited"), (bth.migreq, " migreq")] {
            words += if is { word } else { "" };
        }
        if packet.immediate() == Some([1, 2, 3, 4]) {
            words += " imm";
        }
        let filled = bytes[frame.head.len()..][..frame.payload.len()].iter().all(|&b| b == 0xee);
        words += if filled { " ee" } else { "" };
        self.0.push(words);
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
    /// The stretch that `at` and `len` describe, in `parts` segments one behind the other.
    fn segments(&self, len: u64) -> Vec<Sge> {
        let (at, len, parts) =
            (self.number("at", 0), self.number("len", len), self.number("parts", 1));
        let lkey = LKey(self.number("lkey", KEY.into()) as u32);
        let cut = |part: u64| len * part / parts;
        let piece = |p| Sge { address: at + cut(p), len: (cut(p + 1) - cut(p)) as u32, lkey };
        (0..parts).map(piece).collect()
    }
}

pub struct Qp {
    pub device: Device,
    pub requester: Requester,
    pub responder: Responder,
    pub recv: RecvQueue,
    posted: u64,
    received: u64,
    completed: usize,
}

impl Qp {
    fn new(f: &Fields<'_>) -> Self {
        let mtu = Mtu::from_code((f.number("mtu", 1024) / 256).ilog2() as u8 + 1).unwrap();
        let (qpn, qkey) = (Qpn::new(QPN), f.number("qkey", 17) as u32);
        let mut requester = Requester::new(f.number("depth", 16) as u32, 4, 256);
        requester.start(RequesterConfig {
            qpn,
            qkey,
            sq_psn: Psn::new(f.number("psn", 0) as u32),
            mtu,
            migreq: f.has("migreq"),
            pkey: 0x8001,
        });
        Qp {
            device: Device::default(),
            requester,
            responder: Responder::new(ResponderConfig { qpn, qkey, mtu }),
            recv: RecvQueue::new(16, 4),
            posted: 0,
            received: 0,
            completed: 0,
        }
    }

    fn post(&mut self, f: &Fields<'_>) -> Result<(), SendRefused> {
        let destination = Destination {
            ah: AhId(f.number("ah", 1) as u32),
            qpn: Qpn::new(f.number("qpn", PEER.into()) as u32),
            qkey: f.number("qkey", 17) as u32,
        };
        let (remote_address, rkey) = (0, RKey(KEY));
        let immediate = f.has("imm").then_some([1, 2, 3, 4]);
        let op = match f.values.get("op").copied() {
            None => SendOp::Datagram { destination, immediate },
            Some("send") => SendOp::Send { immediate, invalidate: None },
            Some("write") => SendOp::Write { remote_address, rkey, immediate },
            Some("read") => SendOp::Read { remote_address, rkey },
            Some("fetch_add") => SendOp::FetchAdd { remote_address, rkey, add: 1 },
            Some(other) => panic!("op={other}"),
        };
        let wr = SendWr {
            wr_id: self.posted + 1,
            op,
            segments: &f.segments(0),
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
        let psn = Psn::new(f.number("psn", 0) as u32);
        let opcode = match f.words[1] {
            "send" => Opcode::UD_SEND_ONLY,
            "send.imm" => Opcode::UD_SEND_ONLY_IMM,
            "rc" => Opcode::RC_SEND_ONLY,
            name => panic!("in {name}"),
        };
        let mut bth = Bth::new(opcode, Qpn::new(f.number("qpn", QPN.into()) as u32), psn);
        bth.solicited = f.has("solicited");
        let len = f.number("len", 0) as usize;
        let template = template(f.has("v6"));
        let mut head = Head::begin(&template, &bth);
        if opcode.has_deth() {
            let (qkey, source_qp) = (f.number("qkey", 17) as u32, Qpn::new(PEER));
            head.push_deth(&Deth { qkey, reserved_8: 0xff, source_qp });
        }
        if opcode.has_immediate() {
            head.push_immediate([1, 2, 3, 4]);
        }
        head.finish(&template, len);
        let bytes = vec![psn.get() as u8; len];
        let packet = Packet::parse(head.bytes()).unwrap().unwrap();
        let payload = Payload::Bytes(&bytes);
        self.responder.handle_datagram(&packet, &bth, &payload, &mut self.recv, &mut self.device);
    }

    fn next_packet(&mut self) -> Option<String> {
        let mut words = Words(Vec::new());
        let sent = self.requester.transmit(&mut self.device, &mut words);
        assert_eq!(usize::from(sent), words.0.len(), "transmit said {sent}");
        words.0.pop()
    }

    fn next_completion(&mut self) -> Option<String> {
        let c = self.device.completions.get(self.completed)?;
        self.completed += 1;
        assert_eq!(c.qpn, Qpn::new(QPN));
        let r = if c.op == CompletionOp::Recv { "r" } else { "" };
        let mut text = format!("{r}{} {:?} {:?} len={}", c.wr_id, c.status, c.op, c.byte_len);
        text += &format!(" peer={}", c.peer_qpn.get());
        let is_ours = c.immediate == Some([1, 2, 3, 4]);
        for (is, word) in [(is_ours, " imm"), (c.solicited, " solicited"), (c.grh, " grh")] {
            text += if is { word } else { "" };
        }
        Some(text)
    }

    fn header(&self, at: usize) -> String {
        let area = self.device.memory.0[at..at + GRH_LEN].try_into().unwrap();
        let h = NetworkHeader::read(area).expect("a network header");
        let (class, hops, label) = (h.traffic_class, h.hop_limit, h.flow_label);
        format!("from={} to={} class={class} hops={hops} label={label}", h.source, h.destination)
    }

    fn run(&mut self, line: &str) {
        let f = Fields::of(line);
        match f.words[0] {
            "post" => self.post(&f).unwrap(),
            "refuse" => assert!(self.post(&f).is_err()),
            "recv" => {
                self.received += 1;
                let segments = f.segments(4096);
                self.recv.post(&RecvWr { wr_id: self.received, segments: &segments }).unwrap();
            }
            "in" => self.arrive(&f),
            "out" => {
                let packet = self.next_packet().expect("a packet, but nothing left");
                holds(&f.words[1..], &packet);
            }
            "quiet" => assert_eq!(self.next_packet(), None),
            "done" => {
                let completion = self.next_completion().expect("a completion, but there is none");
                holds(&f.words[1..], &completion);
            }
            "none_done" => assert_eq!(self.next_completion(), None),
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
            "poke" => {
                let (at, len) = (f.number("at", 0) as usize, f.number("len", 1) as usize);
                self.device.memory.0[at..at + len].fill(0x55);
            }
            "header" => holds(&f.words[2..], &self.header(f.number("at", 0) as usize)),
            "qkey" => {
                self.requester.set_qkey(f.words[1].parse().unwrap());
                self.responder.set_qkey(f.words[1].parse().unwrap());
            }
            "waiting" => assert_eq!(self.recv.len(), f.words[1].parse::<u32>().unwrap()),
            "in_use" => assert_eq!(self.recv.in_use(), f.words[1].parse::<u32>().unwrap()),
            "flush" => {
                self.requester.flush(&mut self.device);
                self.responder.flush(&mut self.recv, &mut self.device);
            }
            "release" => self.responder.release(&mut self.recv),
            "recover" => self.requester.recover(),
            "failed" => assert!(self.requester.is_failed()),
            "fault" => {
                assert_eq!(format!("{:?}", self.responder.fault().expect("a fault")), f.words[1])
            }
            "pause" => self.requester.pause(true),
            "resume" => self.requester.pause(false),
            "drained" => assert!(self.requester.is_drained()),
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
