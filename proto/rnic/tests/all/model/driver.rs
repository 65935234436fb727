//! Drives devices and the reference in step: objects, states, time; compares them after every call.

use super::net::Net;
use super::reference::*;
use crate::pair::{Link, VecMemory, Wire, ip};
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_rnic::*;
use longhaul_units::{BitRate, Duration, LKey, Psn, Qpn, Rng, SplitMix64};
use std::collections::BTreeMap;
use std::net::IpAddr;

pub const HOSTS: usize = 3;
/// Calls per episode.
pub const EPISODE: u64 = 600;
pub const INLINE_MAX: u32 = 64;

/// Result of an episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub trace: u64,
    pub frames: u64,
    pub completions: u64,
    pub successes: u64,
    pub received_in_sqe: [u64; 2],
    pub counters: Counters,
}

pub struct Driver {
    pub net: Net,
    pub model: Model,
    pub rng: SplitMix64,
    pub next_id: u64,
    failures_seen: [u64; HOSTS],
    pub overran: bool,
}

/// A random key of the map.
pub fn any<V>(map: &BTreeMap<u32, V>, rng: &mut SplitMix64) -> Option<u32> {
    if map.is_empty() {
        return None;
    }
    map.keys().nth(rng.below(map.len() as u64) as usize).copied()
}

fn random_wire(rng: &mut SplitMix64) -> Wire {
    let bad =
        |rng: &mut SplitMix64, one_of: &[f64]| one_of[rng.below(one_of.len() as u64) as usize];
    Wire {
        delay: Duration::from_us(1 + rng.below(60)),
        jitter: Duration::from_us(if rng.chance(0.5) { 0 } else { rng.below(25) }),
        loss: bad(rng, &[0.0, 0.0, 0.005, 0.03]),
        duplication: bad(rng, &[0.0, 0.0, 0.02]),
        corruption: bad(rng, &[0.0, 0.0, 0.01]),
        marking: bad(rng, &[0.0, 0.1]),
    }
}

/// Runs one episode of `steps` calls; panics if device and reference differ.
pub fn episode(seed: u64, steps: u64) -> Outcome {
    let mut driver = Driver::new(seed);
    for _ in 0..steps {
        driver.step();
    }
    driver.finish()
}

impl Driver {
    pub fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let wire = random_wire(&mut rng);
        let (credits, window) = (rng.chance(0.3), 1 << (2 + rng.below(20)));
        let (every, congestion) = (1 + rng.below(64) as u32, rng.chance(0.3));
        let port_rate = BitRate::from_gbps(1 + rng.below(10)).filter(|_| rng.chance(0.3));
        let (messages, ask_every) =
            (if rng.chance(0.3) { 1 + rng.below(4) as u32 } else { u32::MAX }, 1 + rng.below(64));
        let net = Net::new(rng.next_u64(), HOSTS, MEMORY_LEN, wire, |config| {
            config.qpn_count = 40;
            config.report_credits = credits;
            config.window_packets = window;
            config.ack_every = every;
            config.port_rate = port_rate;
            config.window_messages = messages;
            config.ack_request_every = ask_every as u32;
            config.ack_request_at_window_end = ask_every % 2 == 0;
            config.probe_above = ask_every as u32 / 4;
            config.inline_max = INLINE_MAX;
            config.dcqcn = BitRate::from_gbps(10)
                .filter(|_| congestion)
                .and_then(|rate| Dcqcn::nvidia(rate).ok());
        });
        let model = Model::new(seed, HOSTS, wire.is_lossy(), wire.duplication > 0.0, wire.life());
        let mut driver =
            Driver { net, model, rng, next_id: 1, failures_seen: [0; HOSTS], overran: false };
        for n in 0..HOSTS {
            let bytes = driver.model.hosts[n].shadow.clone();
            driver.net.nodes[n].memory_mut().0.copy_from_slice(&bytes);
            driver.create_pd(n);
            (0..2).for_each(|_| driver.create_cq(n));
            driver.create_srq(n);
            (0..3).for_each(|_| driver.create_qp(n));
        }
        driver
    }

    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub fn node(&mut self, n: usize) -> &mut Rnic<VecMemory> {
        &mut self.net.nodes[n]
    }

    /// Makes one call, and processes its effects.
    pub fn step(&mut self) {
        let n = self.rng.below(HOSTS as u64) as usize;
        let choice = self.rng.below(1000);
        self.net.note(choice << 8 | n as u64);
        match choice {
            0..330 => self.post_send(n),
            330..480 => (0..1 + choice % 4).for_each(|_| self.post_recv(n)),
            480..600 => self.poll(n, 1 + choice as usize % 20),
            600..740 => {
                let span = Duration::from_us(1 + self.rng.below(400));
                self.net.pass(span);
            }
            740..800 => self.connect(n),
            800..830 => self.recover(n),
            830..845 => self.change_state(n),
            845..850 => self.refused_change(n),
            850..870 => self.create_qp(n),
            870..890 => self.destroy_qp(n),
            890..905 => self.register(n),
            905..920 => self.deregister(n),
            920..930 => self.create_ah(n),
            930..935 => self.destroy_ah(n),
            935..945 => self.join(n),
            945..950 => self.leave(n),
            950..960 => self.change_cq(n),
            960..970 => self.arm(n),
            970..975 => self.create_srq(n),
            975..980 => self.destroy_srq(n),
            980..985 => self.create_cq(n),
            985..990 => self.destroy_cq(n),
            990..992 => self.create_pd(n),
            992..995 => self.destroy_pd(n),
            995..997 => self.limit_srq(n),
            _ => self.limit_rate(n),
        }
        self.compare();
    }

    /// Compares events and states, after any call.
    pub fn compare(&mut self) {
        for n in 0..HOSTS {
            while let Some(event) = self.net.nodes[n].poll_event() {
                self.take_event(n, &event);
            }
        }
        // First collect all failures, then check whether each was allowed: one QP's failure can
        // explain another's.
        let mut failed = Vec::new();
        for n in 0..HOSTS {
            let states: Vec<_> =
                self.model.hosts[n].qps.iter().map(|(&qpn, qp)| (qpn, qp.state)).collect();
            for (qpn, state) in states {
                let is = self.net.nodes[n].query_qp(Qpn::new(qpn)).expect("the model has it").state;
                if is != state {
                    let now = self.net.now;
                    let qp = self.model.qp(n, qpn);
                    (qp.state, qp.failed_at) = (is, now);
                    failed.push((n, qpn, state, is));
                }
            }
        }
        for (n, qpn, was, is) in failed {
            let may = match is {
                QpState::Error => self.model.may_fail(n, qpn),
                QpState::SendQueueError => {
                    was != QpState::Error && self.model.sends_may_fail(n, qpn)
                }
                _ => false,
            };
            assert!(may, "node {n} QP {qpn:#x} went from {was:?} to {is:?} for no reason");
        }
        let now = self.net.now;
        for (n, slot) in self.model.due_zombies(now) {
            let memory = self.net.nodes[n].memory();
            self.model.release(n, slot, memory);
        }
        if self.rng.chance(0.02) {
            (0..HOSTS).for_each(|n| self.model.check_memory(n, self.net.nodes[n].memory()));
        }
    }

    fn take_event(&mut self, n: usize, event: &Event) {
        let host = &mut self.model.hosts[n];
        match event {
            Event::CompletionReady(cq) => {
                let cq = host.cqs.get_mut(&cq.0).expect("an event of a CQ that exists");
                assert!(cq.armed, "an event that nobody asked for");
                cq.armed = false;
            }
            Event::CqError(cq) => {
                let cq = host.cqs.get_mut(&cq.0).expect("an event of a CQ that exists");
                assert!(!cq.lost, "told twice");
                cq.lost = true;
                self.overran = true;
            }
            Event::SrqLimitReached(srq) => {
                let srq = host.srqs.get_mut(&srq.0).expect("an event of an SRQ that exists");
                assert!(srq.limit > 0, "an event that nobody asked for");
                srq.limit = 0;
            }
            Event::Qp { qpn, kind } => {
                let qp = host.qps.get_mut(&qpn.get()).expect("an event of a QP that exists");
                match kind {
                    QpEvent::SendQueueDrained => {
                        assert!(
                            std::mem::take(&mut qp.drain_asked),
                            "an event that nobody asked for"
                        );
                    }
                    QpEvent::LastWqeReached => assert!(qp.srq.is_some()),
                    _ => {}
                }
            }
            Event::Cm(_) => panic!("nobody uses the connection manager"),
        }
    }

    pub fn poll(&mut self, n: usize, max: usize) {
        let Some(cq) = any(&self.model.hosts[n].cqs, &mut self.rng) else { return };
        self.poll_cq(n, cq, max);
    }

    pub fn poll_cq(&mut self, n: usize, cq: u32, max: usize) -> usize {
        let mut all = Vec::new();
        let waiting = self.node(n).cq_len(CqId(cq));
        let taken = self.node(n).poll_cq(CqId(cq), max, |c| all.push(c));
        assert_eq!(taken, waiting.min(max));
        let now = self.net.now;
        for c in &all {
            self.net.note(c.wr_id << 8 | c.status as u64);
            self.failures_seen[n] += u64::from(c.status != Status::Success);
            let memories: Vec<_> = self.net.nodes.iter().map(|node| node.memory()).collect();
            self.model.complete(n, cq, c, now, &memories);
        }
        taken
    }

    /// Polls the completions of a QP whose work is about to be discarded, while its owner is still
    /// known.
    pub fn poll_both(&mut self, n: usize, qpn: u32) {
        let (send_cq, recv_cq) =
            (self.model.hosts[n].qps[&qpn].send_cq, self.model.hosts[n].qps[&qpn].recv_cq);
        self.poll_cq(n, send_cq, usize::MAX);
        self.poll_cq(n, recv_cq, usize::MAX);
    }

    pub fn poll_all(&mut self) {
        for n in 0..HOSTS {
            let cqs: Vec<_> = self.model.hosts[n].cqs.keys().copied().collect();
            for cq in cqs {
                self.poll_cq(n, cq, usize::MAX);
            }
        }
    }

    fn modify(&mut self, n: usize, qpn: u32, attr: &QpAttr) -> Result<(), VerbsError> {
        let now = self.net.now;
        self.node(n).modify_qp(now, Qpn::new(qpn), attr)
    }

    fn bring_up(&mut self, n: usize, qpn: u32, to: &BringUp) {
        let now = self.net.now;
        self.node(n).bring_up_qp(now, Qpn::new(qpn), to).expect("transitions that exist");
    }

    /// Connects a QP in state reset to another, or makes a datagram QP ready.
    fn connect(&mut self, n: usize) {
        let Some(qpn) = self.qp_in(n, |qp| qp.state == QpState::Reset) else { return };
        let kind = self.model.hosts[n].qps[&qpn].kind;
        if kind == QpKind::Ud {
            let qkey = 0x1111 * (1 + self.rng.below(2) as u32);
            let ready = BringUp { qkey, sq_psn: Psn::new(7), ..BringUp::to(ip(n), Qpn::new(qpn)) };
            self.bring_up(n, qpn, &ready);
            self.model.qp(n, qpn).qkey = qkey;
            self.model.qp(n, qpn).state = QpState::ReadyToSend;
            return;
        }
        let m = self.rng.below(HOSTS as u64) as usize;
        let Some(peer) = self.qp_in(m, |qp| qp.kind == kind && qp.state == QpState::Reset) else {
            return;
        };
        let now = self.net.now;
        if (m, peer) == (n, qpn)
            || !self.model.is_quiet(n, qpn, now)
            || !self.model.is_quiet(m, peer, now)
        {
            return;
        }
        self.connect_pair([(n, qpn), (m, peer)]);
    }

    fn connect_pair(&mut self, ends: [(usize, u32); 2]) {
        let mut psn =
            || if self.rng.chance(0.3) { 0xff_fffe } else { self.rng.below(1 << 24) as u32 };
        let psn = [psn(), psn()];
        let for_ever = self.rng.chance(0.8);
        let link = Link {
            mtu: Mtu::from_code(1 + self.rng.below(5) as u8).expect("a code of the five"),
            psn,
            timeout: 8,
            retry: 7,
            rnr_retry: if for_ever { 7 } else { 3 },
            min_rnr_timer: 1 + self.rng.below(10) as u8,
            reads: self.rng.below(5) as u8,
            depth: 0,
        };
        let narrow = self.rng.chance(0.05);
        for (i, &(n, qpn)) in ends.iter().enumerate() {
            let (m, peer) = ends[1 - i];
            let mut to = link.bring_up(ip(m), Qpn::new(peer), psn[1 - i], psn[i]);
            if narrow && i == 1 {
                to.access = Access::LOCAL_WRITE;
            }
            self.bring_up(n, qpn, &to);
            let qp = self.model.qp(n, qpn);
            qp.state = QpState::ReadyToSend;
            qp.peer = Some((m, peer));
            qp.peer_gone = false;
            qp.retries_for_ever = for_ever;
            qp.reads = link.reads;
        }
        if narrow {
            self.model.taint(ends[0].0, ends[0].1);
        }
    }

    /// One of a host's QPs that satisfy a predicate.
    pub fn qp_in(&mut self, n: usize, is_meant: impl Fn(&Qp) -> bool) -> Option<u32> {
        let meant: Vec<_> = self.model.hosts[n]
            .qps
            .iter()
            .filter(|(_, qp)| is_meant(qp))
            .map(|(&qpn, _)| qpn)
            .collect();
        if meant.is_empty() {
            None
        } else {
            Some(meant[self.rng.below(meant.len() as u64) as usize])
        }
    }

    /// Resets a QP that failed or has lost its peer. A QP whose send queue alone failed resumes
    /// sending.
    fn recover(&mut self, n: usize) {
        let failed = |qp: &Qp| {
            matches!(qp.state, QpState::Error | QpState::SendQueueError)
                || (qp.peer_gone && qp.state != QpState::Reset)
        };
        let Some(qpn) = self.qp_in(n, failed) else { return };
        match self.model.hosts[n].qps[&qpn].state {
            QpState::SendQueueError => self.leave_sqe(n, qpn),
            _ => self.go_to(n, qpn, QpState::Reset, None),
        }
    }

    /// Takes a send queue out of its error state, perhaps with other access rights.
    fn leave_sqe(&mut self, n: usize, qpn: u32) {
        // Afterwards, earlier failures could not be distinguished from later, wrong ones.
        self.poll_both(n, qpn);
        let current_state = self.rng.chance(0.5).then_some(QpState::SendQueueError);
        let grants = self.rng.chance(0.5);
        let is_ud = self.model.hosts[n].qps[&qpn].kind == QpKind::Ud;
        let qkey = (grants && is_ud).then(|| 0x1111 * (1 + self.rng.below(2) as u32));
        let access = (grants && !is_ud).then_some(Access::ALL);
        let state = Some(QpState::ReadyToSend);
        self.modify(n, qpn, &QpAttr { state, current_state, qkey, access, ..QpAttr::default() })
            .expect("a transition that exists");
        self.model.recover(n, qpn);
        let qp = self.model.qp(n, qpn);
        qp.state = QpState::ReadyToSend;
        qp.qkey = qkey.unwrap_or(qp.qkey);
    }

    /// Reset, error, drained or ready again.
    fn change_state(&mut self, n: usize) {
        let Some(qpn) = any(&self.model.hosts[n].qps, &mut self.rng) else { return };
        let state = self.model.hosts[n].qps[&qpn].state;
        let drain_event = (state == QpState::ReadyToSend).then(|| self.rng.chance(0.5));
        let (to, drain_event) = match (state, self.rng.below(4)) {
            (QpState::ReadyToSend, 0..2) => (QpState::SendQueueDrained, drain_event),
            (QpState::SendQueueDrained, _) => (QpState::ReadyToSend, None),
            (QpState::SendQueueError, 0..2) => return self.leave_sqe(n, qpn),
            (QpState::Reset, _) => return,
            (_, 2) => (QpState::Error, None),
            _ => (QpState::Reset, None),
        };
        self.go_to(n, qpn, to, drain_event);
    }

    fn go_to(&mut self, n: usize, qpn: u32, to: QpState, drain_event: Option<bool>) {
        if to == QpState::Reset {
            self.poll_both(n, qpn);
        }
        self.modify(n, qpn, &QpAttr { state: Some(to), drain_event, ..QpAttr::default() })
            .expect("a transition that exists");
        match to {
            QpState::Reset => self.forget_work(n, qpn),
            QpState::SendQueueDrained => {
                self.model.qp(n, qpn).drain_asked = drain_event == Some(true)
            }
            _ => {}
        }
        let qp = self.model.qp(n, qpn);
        qp.state = to;
    }

    /// A change that every device must refuse.
    fn refused_change(&mut self, n: usize) {
        let Some(qpn) = any(&self.model.hosts[n].qps, &mut self.rng) else { return };
        let state = self.model.hosts[n].qps[&qpn].state;
        let before = self.net.nodes[n].query_qp(Qpn::new(qpn));
        let attr = match self.rng.below(4) {
            0 => QpAttr {
                path_mtu: Some(Mtu::B256),
                current_state: Some(state),
                ..QpAttr::default()
            },
            1 => QpAttr {
                state: Some(QpState::Reset),
                rq_psn: Some(Psn::new(1)),
                ..QpAttr::default()
            },
            2 => QpAttr { state: Some(QpState::Init), timeout: Some(3), ..QpAttr::default() },
            _ => QpAttr::to(QpState::ReadyToReceive),
        };
        assert!(self.modify(n, qpn, &attr).is_err(), "{attr:?} in {state:?}");
        assert_eq!(self.net.nodes[n].query_qp(Qpn::new(qpn)), before, "a refusal changes nothing");
    }

    fn limit_rate(&mut self, n: usize) {
        let Some(qpn) = any(&self.model.hosts[n].qps, &mut self.rng) else { return };
        let limit = RateLimit::from_verbs((self.rng.below(3) * 400_000) as u32, 0, 0);
        let ready = matches!(self.model.hosts[n].qps[&qpn].state, QpState::ReadyToSend);
        let done = self.modify(n, qpn, &QpAttr { rate_limit: Some(limit), ..QpAttr::default() });
        assert!(done.is_ok() || !ready);
    }

    /// Waits for everything that can complete, then destroys everything.
    fn finish(mut self) -> Outcome {
        for round in 0.. {
            for n in 0..HOSTS {
                let qps: Vec<_> = self.model.hosts[n].qps.keys().copied().collect();
                for qpn in qps {
                    if self.model.hosts[n].qps[&qpn].state == QpState::SendQueueDrained {
                        let go = QpAttr::to(QpState::ReadyToSend);
                        self.modify(n, qpn, &go).expect("a transition that exists");
                        self.model.qp(n, qpn).state = QpState::ReadyToSend;
                    }
                    if !self.model.hosts[n].qps[&qpn].incoming.is_empty() {
                        self.post_recv_to(n, qpn, true);
                    }
                    // A flushed receive can overrun a CQ, and so fail others.
                    self.compare();
                }
            }
            self.net.pass(Duration::from_ms(3));
            self.compare();
            self.poll_all();
            let stuck = self.stuck();
            if stuck.is_none() {
                break;
            }
            assert!(round < 400, "never completes: {stuck:?}");
        }
        let life = self.model.life;
        self.net.pass(life);
        self.compare();
        self.poll_all();
        for n in 0..HOSTS {
            self.model.check_memory(n, self.net.nodes[n].memory());
            let counters = self.net.nodes[n].counters();
            assert_eq!(counters.get(Counter::TxFrames), self.net.nodes[n].sent);
            assert_eq!(counters.get(Counter::RxFrames), self.net.nodes[n].arrived);
            assert!(self.overran || counters.get(Counter::CqeError) == self.failures_seen[n]);
        }
        self.give_up_everything();
        let mut counters = Counters::default();
        self.net
            .nodes
            .iter()
            .flat_map(|node| node.counters().iter())
            .for_each(|(c, v)| counters.add(c, v));
        Outcome {
            trace: self.net.trace,
            frames: self.net.nodes.iter().map(|node| node.sent).sum(),
            completions: self.model.completions,
            successes: self.model.successes,
            received_in_sqe: self.model.received_in_sqe,
            counters,
        }
    }

    /// A QP that was not interfered with but whose work does not complete.
    fn stuck(&self) -> Option<(usize, u32, Sent, Option<QpInfo>)> {
        for (n, host) in self.model.hosts.iter().enumerate() {
            for (&qpn, qp) in &host.qps {
                let waits = qp.sends.iter().find(|s| s.signaled);
                let sends = matches!(qp.state, QpState::ReadyToSend | QpState::SendQueueError);
                if let (Some(sent), true, false) = (waits, sends, self.is_doomed(n, qpn, qp)) {
                    return Some((
                        n,
                        qpn,
                        sent.clone(),
                        self.net.nodes[n].query_qp(Qpn::new(qpn)).ok(),
                    ));
                }
            }
        }
        None
    }

    /// The QP lost completions, or waits for receives at a peer that cannot take any.
    fn is_doomed(&self, n: usize, _qpn: u32, qp: &Qp) -> bool {
        let host = &self.model.hosts[n];
        host.cqs[&qp.send_cq].lost || host.cqs[&qp.recv_cq].lost
    }

    fn give_up_everything(&mut self) {
        for n in 0..HOSTS {
            let groups: Vec<_> =
                std::mem::take(&mut self.model.hosts[n].groups).into_iter().collect();
            for (group, members) in groups {
                for qpn in members {
                    self.node(n).detach_multicast(Qpn::new(qpn), group).expect("a member");
                }
            }
            while let Some(qpn) = any(&self.model.hosts[n].qps, &mut self.rng) {
                self.destroy(n, qpn);
            }
            while !self.model.hosts[n].srqs.is_empty() {
                self.destroy_srq(n);
            }
            while !self.model.hosts[n].cqs.is_empty() {
                self.destroy_cq(n);
            }
            while !self.model.hosts[n].ahs.is_empty() {
                self.destroy_ah(n);
            }
            while let Some(key) = any(&self.model.hosts[n].mrs, &mut self.rng) {
                self.node(n).dereg_mr(LKey(key)).expect("a region that exists");
                let pd = self.model.hosts[n].mrs.remove(&key).expect("chosen").pd;
                self.use_pd(n, pd, -1);
            }
            while let Some(pd) = any(&self.model.hosts[n].pds, &mut self.rng) {
                assert_eq!(self.model.hosts[n].pds.remove(&pd), Some(0));
                self.node(n).dealloc_pd(PdId(pd)).expect("a PD without users");
            }
        }
    }
}

/// One of two groups.
pub fn group(rng: &mut SplitMix64) -> IpAddr {
    IpAddr::from([239, 1, 1, rng.below(2) as u8])
}
