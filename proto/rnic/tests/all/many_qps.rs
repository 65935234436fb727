//! Hundreds of QPs on devices whose drivers run rarely and take few frames per turn.

use crate::pair::*;
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_rnic::*;
use longhaul_units::{Duration, Instant, Qpn};
use longhaul_wire::Head;
use std::collections::VecDeque;

/// Frames that a driver takes per turn.
const BATCH: usize = 64;
/// Frames that a port's ring holds.
const RING: usize = 2048;
const MESSAGE: u32 = 64 << 10;
/// The local ACK timeout that perftest gives its QPs: 67 ms.
const TIMEOUT: u8 = 14;

/// Frames sent by one device and not yet received by the other.
struct Ring {
    frames: VecDeque<Vec<u8>>,
    frames_max: usize,
}

impl Transmit for Ring {
    fn room(&mut self, _side: Side) -> usize {
        self.frames_max - self.frames.len()
    }

    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.frames.push_back(bytes);
    }
}

/// Two devices, each with a driver, and the rings between them.
struct Late {
    now: Instant,
    devices: [Rnic<VecMemory>; 2],
    /// Indexed by receiver.
    rings: [Ring; 2],
    qps: Vec<[Qpn; 2]>,
    ends: Vec<(CqId, MrKeys)>,
    done: [usize; 2],
    failed: usize,
}

impl Late {
    fn new(qps: usize, mtu: Mtu, frames_max: usize) -> Self {
        Late::with(qps, mtu, frames_max, |_| {})
    }

    fn with(qps: usize, mtu: Mtu, frames_max: usize, change: impl Fn(&mut Config)) -> Self {
        let device = |n| {
            let mut config = config(n);
            change(&mut config);
            Rnic::new(config, VecMemory(vec![0; 2 * MESSAGE as usize]))
        };
        let mut late = Late {
            now: Instant::ZERO,
            devices: [device(0), device(1)],
            rings: [0, 1].map(|_| Ring { frames: VecDeque::new(), frames_max }),
            qps: Vec::new(),
            ends: Vec::new(),
            done: [0; 2],
            failed: 0,
        };
        let mut pds = Vec::new();
        for device in &mut late.devices {
            let pd = device.alloc_pd().unwrap();
            let mr = device.reg_mr(pd, BASE, u64::from(2 * MESSAGE), BASE, Access::ALL).unwrap();
            late.ends.push((device.create_cq(1 << 16).unwrap(), mr));
            pds.push(pd);
        }
        let link = Link { mtu, timeout: TIMEOUT, ..Link::default() };
        for _ in 0..qps {
            let mut made = [Qpn::default(); 2];
            for n in 0..2 {
                let init =
                    QpInit { signal_all: true, ..qp_init(QpKind::Rc, pds[n], late.ends[n].0, 16) };
                made[n] = late.devices[n].create_qp(&init).unwrap();
            }
            for n in 0..2 {
                for attr in transitions(ip(1 - n), made[1 - n], link.psn[1 - n], link.psn[n], &link)
                {
                    late.devices[n].modify_qp(late.now, made[n], &attr).unwrap();
                }
            }
            late.qps.push(made);
        }
        late
    }

    /// Posts a WRITE of [`MESSAGE`] bytes to every QP of device `n`.
    fn post(&mut self, n: usize) {
        let segments = [Sge { address: BASE, len: MESSAGE, lkey: self.ends[n].1.lkey }];
        let remote_address = BASE + u64::from(MESSAGE);
        let op = SendOp::Write { remote_address, rkey: self.ends[1 - n].1.rkey, immediate: None };
        for qps in &self.qps {
            self.devices[n].post_send(self.now, qps[n], &wr(1, op, &segments)).unwrap();
        }
    }

    /// Runs a turn of device `n`'s driver, bounded as in a program's device.
    fn turn(&mut self, n: usize) {
        let device = &mut self.devices[n];
        let taken = self.rings[n].frames.len().min(BATCH);
        for bytes in self.rings[n].frames.drain(..taken) {
            let head = Head::copy_of(&bytes);
            device.handle_frame(self.now, 0, &Frame::received(&head, &bytes).unwrap());
        }
        device.note_received(taken, taken == BATCH);
        if device.poll_timeout().is_some_and(|due| due.at <= self.now) {
            device.handle_timeout(self.now);
        }
        device.poll_transmit(self.now, &mut self.rings[1 - n]);
        self.done[n] += device.poll_cq(self.ends[n].0, usize::MAX, |completion| {
            self.failed += usize::from(completion.status != Status::Success);
        });
    }

    /// Runs both drivers once per `every`, until this many WRITEs of each are complete.
    fn run(&mut self, every: Duration, writes: [usize; 2]) {
        let limit = self.now + Duration::from_ms(20_000);
        while self.done != writes {
            (0..2).for_each(|n| self.turn(n));
            self.now += every;
            if self.failed > 0 {
                return;
            }
            assert!(self.now < limit, "{:?} of {writes:?} are done", self.done);
        }
    }

    fn assert_all_well(&self) {
        assert_eq!(self.failed, 0, "completions with errors, or flushed");
    }

    fn count(&self, counter: Counter) -> u64 {
        self.devices.iter().map(|device| device.counters().get(counter)).sum()
    }
}

#[test]
fn a_message_may_take_longer_to_leave_than_the_timer_runs() {
    for (mtu, both_ways) in [(Mtu::B1024, false), (Mtu::B4096, true)] {
        let mut late = Late::new(512, mtu, RING);
        late.post(0);
        if both_ways {
            late.post(1);
        }
        late.run(Duration::from_us(600), [512, 512 * usize::from(both_ways)]);
        late.assert_all_well();
        assert!(late.now > Instant::ZERO + Duration::from_ms(70), "{}", late.now.as_ns());
        assert_eq!(late.count(Counter::LocalAckTimeoutErr), 0, "{mtu:?}");
        assert_eq!(late.count(Counter::TxRetransmits), 0, "{mtu:?}");
    }
}

#[test]
fn a_responder_far_behind_is_not_sent_everything_again() {
    // The ring accepts everything at once; the last packet is answered after six timeouts.
    let mut late = Late::new(512, Mtu::B1024, usize::MAX);
    late.post(0);
    late.run(Duration::from_us(800), [512, 0]);
    late.assert_all_well();
    assert!(late.count(Counter::LocalAckTimeoutErr) > 512);
    let retransmitted = late.count(Counter::TxRetransmits);
    assert!(
        retransmitted <= 2 * late.count(Counter::LocalAckTimeoutErr),
        "{retransmitted} packets"
    );
}

#[test]
fn queue_pairs_wait_in_line_for_longer_than_all_their_retries() {
    const QPS: usize = 128;
    // In both directions, through rings that hold more than a device takes during eight timeouts.
    let run = |change: fn(&mut Config)| {
        let mut late = Late::with(QPS, Mtu::B256, 4096, change);
        late.post(0);
        late.post(1);
        late.run(Duration::from_us(9000), [QPS; 2]);
        late
    };
    let short = run(|config| config.timeout_stretch_max = 1);
    assert!(short.failed > 0, "the rings are too short to be of interest");
    let together = run(|config| config.ack_request_spread = false);
    assert!(together.failed > 0, "one answer would tell of all");
    run(|_| {}).assert_all_well();
}

#[test]
fn acks_that_wait_in_the_port_are_heard_before_timers() {
    const QPS: usize = 2 * BATCH;
    let mut late = Late::new(QPS, Mtu::B4096, RING);
    late.post(0);
    late.turn(0);
    while !late.rings[1].frames.is_empty() {
        late.turn(1);
    }
    assert!(late.rings[0].frames.len() >= QPS, "every QP is answered");
    // The requester's driver did not run.
    late.now += Duration::from_ms(500);
    late.run(Duration::from_us(10), [QPS, 0]);
    late.assert_all_well();
    assert_eq!(late.count(Counter::LocalAckTimeoutErr), 0);
}

#[test]
fn a_port_that_is_never_empty_does_not_stop_timers() {
    let mut late = Late::new(1, Mtu::B4096, RING);
    late.post(0);
    late.devices[0].poll_transmit(late.now, &mut late.rings[1]);
    late.now += Duration::from_ms(500);
    for turn in 1.. {
        late.devices[0].note_received(BATCH, true);
        late.devices[0].handle_timeout(late.now);
        if late.count(Counter::LocalAckTimeoutErr) > 0 {
            assert_eq!(turn * BATCH, RING);
            return;
        }
    }
}
