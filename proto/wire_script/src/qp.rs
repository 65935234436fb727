//! A QP that a script drives.

use crate::packet::{IMMEDIATE, named, outcome};
use crate::{Device, Line, Memory, Sent, Wire, describe, holds};
use longhaul_node::Payload;
use longhaul_units::{Qpn, RKey};
use longhaul_wire::{Packet, Transport};
use longhaul_work::{
    AhId, Completion, Counter, Destination, RecvQueue, RecvWr, SendOp, SendRefused, SendWr, Sge,
};

/// The QP.
pub const LOCAL_QPN: u32 = 0x11;
/// The peer's QP.
pub const PEER_QPN: u32 = 0x22;

/// Requester and responder of one transport.
pub trait Halves: Sized {
    /// The transport.
    const TRANSPORT: Transport;
    /// Bytes of memory.
    const MEMORY: usize;

    /// Halves as a `config` line describes them; the line may also change the device.
    fn new(config: &Line<'_>, device: &mut Device) -> Self;
    /// Posts to the requester.
    fn post(
        &mut self,
        wr: &SendWr<'_>,
        signal_all: bool,
        memory: &Memory,
    ) -> Result<(), SendRefused>;
    /// Sends one packet; false if there is none.
    fn transmit(&mut self, recv: &RecvQueue, device: &mut Device, wire: &mut Wire) -> bool;
    /// Takes a packet.
    fn receive(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        recv: &mut RecvQueue,
        device: &mut Device,
    );
    /// The QP enters the error state.
    fn flush(&mut self, recv: &mut RecvQueue, device: &mut Device);
    /// The responder returns its receive.
    fn release(&mut self, recv: &mut RecvQueue);
    /// Pauses the requester, or resumes it.
    fn pause(&mut self, paused: bool);
    /// The requester is drained.
    fn is_drained(&self) -> bool;
    /// The requester has failed.
    fn is_failed(&self) -> bool;
    /// Name of the responder's fault.
    fn fault(&self) -> Option<String>;
    /// Runs a line that only this transport has.
    fn run(&mut self, line: &Line<'_>, device: &mut Device);
}

/// Both halves of a QP, with a device and a receive queue.
pub struct Qp<H> {
    /// The device.
    pub device: Device,
    /// Requester and responder.
    pub halves: H,
    /// The receive queue.
    pub recv: RecvQueue,
    /// Receives posted.
    pub received: u64,
    posted: u64,
    completed: usize,
}

impl<H: Halves> Qp<H> {
    /// A QP as a `config` line describes it.
    pub fn new(config: &Line<'_>) -> Self {
        let mut device = Device::new(H::TRANSPORT, H::MEMORY);
        Qp {
            halves: H::new(config, &mut device),
            device,
            recv: RecvQueue::new(64, 4),
            received: 0,
            posted: 0,
            completed: 0,
        }
    }

    /// Posts a receive.
    pub fn post_receive(&mut self, segments: &[Sge]) {
        self.received += 1;
        self.recv.post(&RecvWr { wr_id: self.received, segments }).expect("room for a receive");
    }

    /// The next packet to be sent.
    pub fn transmit(&mut self) -> Option<Sent> {
        let mut wire = Wire::default();
        let sent = self.halves.transmit(&self.recv, &mut self.device, &mut wire);
        assert_eq!(sent, wire.0.len() == 1, "transmit said {sent}");
        wire.0.pop()
    }

    /// A packet arrives.
    pub fn deliver(&mut self, sent: &Sent) {
        let packet = Packet::parse(&sent.head).expect("valid headers").expect("a RoCE packet");
        self.device.revoke();
        let payload = Payload::Bytes(&sent.payload);
        self.halves.receive(&packet, &payload, &mut self.recv, &mut self.device);
    }

    /// The next completion.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.device.completions.get(self.completed).copied();
        self.completed += usize::from(completion.is_some());
        completion
    }

    fn post(&mut self, line: &Line<'_>) -> Result<(), SendRefused> {
        let op = send_op(line);
        let is_atomic = matches!(op, SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. });
        let wr = SendWr {
            wr_id: self.posted + 1,
            op,
            segments: &line.segments(if is_atomic { 8 } else { 0 }),
            inline: line.has("inline"),
            signaled: !line.has("unsignaled"),
            solicited: line.has("solicited"),
            fence: line.has("fence"),
        };
        self.halves.post(&wr, line.has("signal_all"), &self.device.memory)?;
        self.posted += 1;
        Ok(())
    }

    fn run(&mut self, text: &str) {
        let line = Line::of(text);
        match line.words[0] {
            "post" => self.post(&line).expect("a send that is queued"),
            "refuse" => assert!(self.post(&line).is_err(), "queued, though it must be refused"),
            "recv" => self.post_receive(&line.segments(4096)),
            "in" => self.deliver(&named(H::TRANSPORT, &line)),
            "out" => {
                let packet = self.transmit().expect("a packet, but nothing left");
                holds(&line.words[1..], &describe(&packet));
            }
            "quiet" => assert_eq!(self.transmit().as_ref().map(describe), None),
            "done" => {
                let completion = self.next_completion().expect("a completion, but there is none");
                holds(&line.words[1..], &outcome(&completion));
            }
            "none_done" => assert_eq!(self.next_completion(), None),
            "receives" => {
                let state = format!("waiting={} in_use={}", self.recv.len(), self.recv.in_use());
                holds(&line.words[1..], &state);
            }
            "flush" => self.halves.flush(&mut self.recv, &mut self.device),
            "release" => self.halves.release(&mut self.recv),
            "pause" => self.halves.pause(true),
            "resume" => self.halves.pause(false),
            "drained" => assert!(self.halves.is_drained()),
            "draining" => assert!(!self.halves.is_drained()),
            "failed" => assert!(self.halves.is_failed()),
            "fault" => assert_eq!(self.halves.fault().expect("a fault"), line.words[1]),
            _ => self.run_device(&line),
        }
    }

    /// Lines about memory and counters.
    fn run_device(&mut self, line: &Line<'_>) {
        let device = &mut self.device;
        let (at, len) = (line.number("at", 0) as usize, line.number("len", 1) as usize);
        match line.words[0] {
            "count" => {
                let counter = Counter::ALL.iter().find(|c| c.name() == line.words[1]);
                let count = device.counters.get(*counter.expect("a counter"));
                assert_eq!(count, line.words[2].parse::<u64>().expect("a number"));
            }
            "mem" => {
                let want = line.value("is").expect("is=");
                let want = u8::from_str_radix(want, 16).expect("a byte");
                let found = &device.memory.0[at..at + len];
                assert!(found.iter().all(|&b| b == want), "memory begins with {:02x}", found[0]);
            }
            "poke" => device.memory.0[at..at + len].fill(0x55),
            "set" => device.set_word(at, line.number("value", 0)),
            "word" => assert_eq!(device.word(at), line.number("is", 0)),
            "deny" => device.set_region(false),
            "allow" => device.set_region(true),
            "forbid" => device.permits = false,
            _ => self.halves.run(line, device),
        }
    }
}

/// The operation that a `post` line names; without a name, a datagram.
fn send_op(line: &Line<'_>) -> SendOp {
    let immediate = line.has("imm").then_some(IMMEDIATE);
    let (remote_address, rkey) = (line.number("va", 0), line.rkey());
    let (value, compare) = (line.number("value", 0), line.number("compare", 0));
    let mut op = SendOp::Datagram {
        destination: Destination {
            ah: AhId(line.number("ah", 1) as u32),
            qpn: Qpn::new(line.number("qpn", PEER_QPN.into()) as u32),
            qkey: line.number("qkey", 17) as u32,
        },
        immediate,
    };
    for &word in line.words[1..].iter().filter(|word| !word.contains('=')) {
        match word {
            "send" => {
                op = SendOp::Send { immediate, invalidate: line.has("inv").then_some(RKey(9)) };
            }
            "write" => op = SendOp::Write { remote_address, rkey, immediate },
            "read" => op = SendOp::Read { remote_address, rkey },
            "fetch_add" => op = SendOp::FetchAdd { remote_address, rkey, add: value },
            "cmp_swap" => op = SendOp::CmpSwap { remote_address, rkey, compare, swap: value },
            "datagram" | "imm" | "inv" | "inline" | "unsignaled" | "solicited" | "fence"
            | "signal_all" => {}
            other => panic!("post {other}"),
        }
    }
    op
}

/// Runs a script; a failure names its line.
pub fn play<H: Halves>(script: &str) {
    let lines: Vec<_> = script.lines().map(|l| l.split('#').next().unwrap_or("").trim()).collect();
    let config = lines.iter().find(|l| l.starts_with("config")).copied().unwrap_or("config");
    let mut qp = Qp::<H>::new(&Line::of(config));
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
    assert_eq!(qp.transmit().as_ref().map(describe), None, "left over at the end");
    assert_eq!(qp.next_completion(), None, "left over at the end");
}
