//! Wire scripts: frames received on each side, and exactly the frames that must be sent.
//!
//! ```text
//! connect psn=100 mtu=1024         REQ (LAN), REP (WAN), RTU: a flow learnt from the CM
//! lan: write_only 100 A len=64     a frame from the requester (A: AckReq)
//! > wan write_only 100 A len=64    what must leave by the WAN side
//! > lan ack 100 msn=1              and by the LAN side
//! wan: nak 101 sequence msn=1      a frame from the responder
//! after 10ms                       time passes, timers fire
//! ```
//!
//! After every step all sent frames are compared with the `>` lines that follow it: same frames,
//! same order on each side, no others.

pub mod frames;

use frames::{REQUESTER_QPN, RESPONDER_QPN, Wire};
use longhaul_accel::{Accelerator, Config, FlowStatus, LAN, WAN};
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_units::{Duration, Instant, Qpn};
use longhaul_wire::Head;

/// Collects a node's frames as bytes.
#[derive(Default)]
pub struct Sink {
    pub out: Vec<(Side, Vec<u8>)>,
    pub room: Option<usize>,
}

impl Transmit for Sink {
    fn room(&mut self, _side: Side) -> usize {
        self.room.unwrap_or(usize::MAX)
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.out.push((side, bytes));
    }
}

/// Delivers `bytes` to `node` as a port would.
pub fn deliver(node: &mut (impl Node + ?Sized), now: Instant, side: Side, bytes: &[u8]) {
    let head = Head::copy_of(bytes);
    match Frame::received(&head, bytes) {
        Ok(frame) => node.handle_frame(now, side, &frame),
        Err(_) => node.handle_frame(now, side, &Frame::opaque(bytes)),
    }
}

pub struct Script {
    pub accel: Accelerator,
    pub now: Instant,
    pub wire: Wire,
    pending: Vec<(Side, Vec<u8>)>,
    /// Frames sent in the last step.
    pub last: Vec<(Side, Vec<u8>)>,
}

pub fn config() -> Config {
    Config {
        rto_initial: Duration::from_ms(100),
        rto_min: Duration::from_ms(5),
        give_up_after: Duration::from_ms(1000),
        ..Config::default()
    }
}

/// Runs `text` in a new script with the default test configuration.
pub fn run(text: &str) -> Script {
    run_with(config(), text)
}

pub fn run_with(config: Config, text: &str) -> Script {
    let mut script = Script {
        accel: Accelerator::new(config).expect("valid configuration"),
        now: Instant::from_ns(1_000_000),
        wire: Wire::default(),
        pending: Vec::new(),
        last: Vec::new(),
    };
    script.go_on(text);
    script
}

fn duration(text: &str) -> Duration {
    let split = text.find(|c: char| !c.is_ascii_digit()).expect("a unit");
    let (number, unit) = text.split_at(split);
    let number = number.parse().expect("a number");
    match unit {
        "us" => Duration::from_us(number),
        "ms" => Duration::from_ms(number),
        unit => panic!("unit {unit}"),
    }
}

impl Script {
    /// Runs more lines.
    pub fn go_on(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or("").trim();
            if let Some(expected) = line.strip_prefix("> ") {
                self.expect(expected);
            } else if !line.is_empty() {
                self.nothing_left(line);
                self.step(line);
            }
        }
        self.nothing_left("the end");
    }

    pub fn status(&self) -> FlowStatus {
        self.accel.flows().next().expect("a flow")
    }

    pub fn inject(&mut self, side: Side, bytes: &[u8]) {
        deliver(&mut self.accel, self.now, side, bytes);
        self.drain();
    }

    /// Delivers a frame, which must pass unchanged.
    pub fn passes(&mut self, side: Side, bytes: &[u8]) {
        self.inject(side, bytes);
        let passed = std::mem::take(&mut self.pending);
        assert_eq!(passed, [(1 - side, bytes.to_vec())]);
    }

    fn nothing_left(&self, before: &str) {
        let left: Vec<_> =
            self.pending.iter().map(|(side, bytes)| frames::describe(*side, bytes)).collect();
        assert!(left.is_empty(), "unexpected before `{before}`: {left:?}");
    }

    fn expect(&mut self, expected: &str) {
        let side = if expected.starts_with("lan") { LAN } else { WAN };
        let at = self.pending.iter().position(|(s, _)| *s == side);
        let Some(at) = at else {
            let came: Vec<_> =
                self.pending.iter().map(|(s, it)| frames::describe(*s, it)).collect();
            panic!("`{expected}` did not come, but {came:?}")
        };
        let (_, bytes) = self.pending.remove(at);
        assert_eq!(
            frames::describe(side, &bytes),
            expected.split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }

    fn step(&mut self, line: &str) {
        self.last.clear();
        if let Some(rest) = line.strip_prefix("connect") {
            self.connect(rest);
        } else if let Some(time) = line.strip_prefix("after ") {
            self.pass_time(duration(time.trim()));
        } else if let Some(packet) = line.strip_prefix("lan: ") {
            let bytes = self.wire.requester_frame(packet);
            self.inject(LAN, &bytes);
        } else if let Some(packet) = line.strip_prefix("wan: ") {
            let bytes = self.wire.responder_frame(packet);
            self.inject(WAN, &bytes);
        } else {
            panic!("cannot read `{line}`");
        }
    }

    fn connect(&mut self, rest: &str) {
        for side_and_line in
            [(LAN, format!("req {rest}")), (WAN, format!("rep {rest}")), (LAN, "rtu".into())]
        {
            let (side, line) = side_and_line;
            let bytes = match side {
                LAN => self.wire.requester_frame(&line),
                _ => self.wire.responder_frame(&line),
            };
            self.inject(side, &bytes);
            let passed = std::mem::take(&mut self.pending);
            assert_eq!(passed, [(1 - side, bytes)], "`{line}` passes untouched");
        }
        let flow = self.status();
        assert_eq!(flow.key.responder_qpn, Qpn::new(RESPONDER_QPN));
        assert_eq!(flow.requester_qpn, Some(Qpn::new(REQUESTER_QPN)));
    }

    fn pass_time(&mut self, span: Duration) {
        let end = self.now + span;
        for _ in 0..100_000 {
            match self.accel.poll_timeout() {
                Some(deadline) if deadline.at <= end => {
                    self.now = self.now.max(deadline.at);
                    self.accel.handle_timeout(self.now);
                    self.drain();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("timers do not advance: {:?}", self.accel.poll_timeout());
    }

    fn drain(&mut self) {
        let mut sink = Sink::default();
        self.accel.poll_transmit(self.now, &mut sink);
        self.last.extend(sink.out.iter().cloned());
        self.pending.append(&mut sink.out);
    }
}
