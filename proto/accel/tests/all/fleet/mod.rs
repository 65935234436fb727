//! Many queue pairs between two hosts, with or without boxes, over a fibre with any fault, in
//! virtual time.
//!
//! Both programs derive their requests from the seed, so that each end knows what must arrive:
//! every byte, immediate, completion and atomic result is checked against the [plan](plan). QPs may
//! be reset with data in flight and restart with other PSNs; boxes may be killed and restarted.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod boxes;
mod fork;
mod manager;
mod memory;
pub mod plan;
mod program;

use boxes::{Boxes, Kill, Limits, Site};
use fork::Fork;
use longhaul_accel::{Accelerator, Mode};
use longhaul_link::LinkConfig;
use longhaul_node::{Node, node_by_variant};
use longhaul_rnic::{Config, Mtu};
use longhaul_sim::{Cable, Nodes};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};
use plan::{Mix, Plan, Stream};
use program::Host;
#[allow(unused_imports, reason = "each test binary uses a part")]
pub use program::{End, Failure};
use std::net::IpAddr;
use std::rc::Rc;

pub fn address_of(host: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, host as u8 + 1])
}

/// Properties of a NIC, and attributes of its QPs.
#[derive(Clone, Debug)]
pub struct Nic {
    pub timeout: u8,
    pub rnr_timer: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub reads: u8,
    pub ack_every: u32,
    pub ack_request_every: u32,
    pub window_packets: u32,
    pub window_messages: u32,
    pub adaptive: Option<Duration>,
    pub report_credits: bool,
}

impl Default for Nic {
    fn default() -> Self {
        Nic {
            timeout: 14,
            rnr_timer: 12,
            retries: 7,
            rnr_retries: 7,
            reads: 16,
            ack_every: 64,
            ack_request_every: 64,
            window_packets: 1 << 23,
            window_messages: u32::MAX,
            adaptive: None,
            report_credits: false,
        }
    }
}

impl Nic {
    fn apply(&self, config: &mut Config) {
        config.ack_every = self.ack_every;
        config.ack_request_every = self.ack_request_every;
        config.window_packets = self.window_packets;
        config.window_messages = self.window_messages;
        config.adaptive_timeout = self.adaptive;
        config.report_credits = self.report_credits;
    }
}

/// How QPs are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connect {
    /// Both programs know the peer's attributes without a packet.
    Aside,
    /// By the connection manager: the first host initiates and disconnects.
    Manager,
}

/// Parameters of one run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub boxes: Boxes,
    pub mode: Mode,
    pub connect: Connect,
    pub qps: usize,
    pub both_ways: bool,
    pub mix: Mix,
    /// Messages per QP, direction and life.
    pub messages: usize,
    pub size_max: u32,
    pub depth: u32,
    pub receives: u32,
    /// Time from a receive's completion until the next one is posted.
    pub receive_delay: Duration,
    pub mtu: Mtu,
    /// Path MTU in the connection manager's messages.
    pub mtu_told: Option<Mtu>,
    pub rate: BitRate,
    /// The fibre; also both LANs, except for their delay.
    pub fibre: LinkConfig,
    pub nic: Nic,
    /// Number of connections of each QP, time between two of them, and time down in between.
    pub lives: usize,
    pub lifetime: Duration,
    pub gap: Duration,
    /// QPs begin within this time.
    pub stagger: Duration,
    pub random_ports: bool,
    /// Lives begin at one of so many PSNs by turns, each this far behind the previous one; random
    /// if `None`.
    pub psn_step: Option<(usize, i32)>,
    /// All QPs send the same messages from the same PSN on, like the QPs of one library.
    pub are_alike: bool,
    pub kills: Vec<Kill>,
    /// From then on, the second host's frames bypass the boxes, except the connection manager's.
    pub detour_from: Option<Instant>,
    pub time_max: Duration,
    pub limits: Limits,
}

impl Setup {
    pub fn new(seed: u64, boxes: Boxes) -> Setup {
        let rate = BitRate::from_gbps(10).expect("not zero");
        Setup {
            seed,
            boxes,
            mode: Mode::Early,
            connect: Connect::Aside,
            qps: 1,
            both_ways: true,
            mix: Mix::Everything,
            messages: 20,
            size_max: 64 << 10,
            depth: 16,
            receives: 16,
            receive_delay: Duration::ZERO,
            mtu: Mtu::B1024,
            mtu_told: None,
            rate,
            fibre: LinkConfig::fibre_km(1000, rate),
            nic: Nic::default(),
            lives: 1,
            lifetime: Duration::from_ms(100),
            gap: Duration::ZERO,
            stagger: Duration::ZERO,
            random_ports: true,
            psn_step: None,
            are_alike: false,
            kills: Vec::new(),
            detour_from: None,
            time_max: Duration::from_ms(120_000),
            limits: Limits::default(),
        }
    }

    fn sends(&self, host: usize) -> bool {
        host == 0 || self.both_ways
    }

    fn plan(&self) -> Plan {
        let mut seeds = SplitMix64::new(self.seed);
        let first = seeds.clone();
        let stream = |seeds: &mut SplitMix64, host| {
            let messages = if self.sends(host) { self.messages } else { 0 };
            Stream::draw(seeds.next_u64(), self.mix, messages, self.lives, self.size_max)
        };
        let streams = (0..self.qps).map(|_| {
            if self.are_alike {
                seeds = first.clone();
            }
            [stream(&mut seeds, 0), stream(&mut seeds, 1)]
        });
        let streams = streams.collect();
        let stride = u64::from(self.size_max).next_multiple_of(64) + 64;
        Plan {
            streams,
            stride,
            seed: self.seed,
            psn_step: self.psn_step,
            are_alike: self.are_alike,
        }
    }
}

enum Station {
    Host(Box<Host>),
    Site(Box<Site>),
    /// Any other node on the path.
    Between(Box<dyn Node>),
}

node_by_variant!(Station: Host, Site, Between);

/// Result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub ended: Duration,
    pub failures: Vec<Failure>,
    /// Violated invariants: bytes, order, completions, sums.
    pub violations: Vec<String>,
    /// QPs that have not finished.
    pub unfinished: Vec<String>,
    /// If a QP has not finished: a description of each accelerator's flows.
    pub flows: Vec<String>,
    /// By QP and requester.
    pub counts: Vec<[Count; 2]>,
}

/// Progress of one direction of a QP, over all its lives.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    pub messages: usize,
    /// Messages completed at their requester, in order.
    pub completed: usize,
    /// The first message with bytes that the responder lacks.
    pub placed: usize,
    /// Index behind the last message that the responder is known to have, READs and WRITEs without
    /// bytes excepted.
    pub reached: usize,
    /// The last completed READ or atomic.
    pub fence: Option<usize>,
}

impl Outcome {
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.violations.is_empty() && self.unfinished.is_empty()
    }
}

/// Puts a fork before each host, and a fault-free fibre between the two.
fn add_detour(stations: &mut Vec<Station>, cables: &mut Vec<Cable>, setup: &Setup, from: Instant) {
    let first = stations.len();
    for host in [0, 1] {
        stations.push(Station::Between(Box::new(Fork::new((host == 1).then_some(from)))));
        let is_host = |end: &&mut (usize, usize)| **end == (host, 0);
        let end = cables.iter_mut().flat_map(|cable| &mut cable.ends).find(is_host);
        *end.expect("hosts have a cable") = (first + host, 1);
        cables.push(Cable::short([(host, 0), (first + host, 0)], setup.rate));
    }
    let wire =
        LinkConfig { delay: setup.fibre.delay, rate: setup.fibre.rate, ..LinkConfig::default() };
    let ends = [(first, 2), (first + 1, 2)];
    cables.push(Cable { ends, wire, loss_toward_second_only: false });
}

/// A running network.
pub struct Fleet {
    setup: Setup,
    nodes: Nodes<Station>,
}

impl Fleet {
    pub fn new(setup: &Setup) -> Fleet {
        Fleet::with(setup, None)
    }

    /// With `between` in the middle of the fibre, its side 0 towards the first host.
    pub fn with(setup: &Setup, between: Option<Box<dyn Node>>) -> Fleet {
        let plan = Rc::new(setup.plan());
        let mut hosts = [0, 1].map(|number| Host::new(number, setup, &plan));
        let peers = [hosts[0].peers(), hosts[1].peers()];
        hosts[0].introduce(&peers[1]);
        hosts[1].introduce(&peers[0]);
        let mut stations: Vec<Station> =
            hosts.into_iter().map(|host| Station::Host(Box::new(host))).collect();
        let lan = |ends| Cable::short(ends, setup.rate);
        let site = |number| Station::Site(Box::new(Site::new(setup, number)));
        let fibre = |wire, ends| Cable { ends, wire, loss_toward_second_only: false };
        let (mut cables, ends) = match setup.boxes {
            Boxes::None => (Vec::new(), [(0, 0), (1, 0)]),
            Boxes::One => {
                stations.push(site(0));
                (vec![lan([(0, 0), (2, 0)])], [(2, 1), (1, 0)])
            }
            Boxes::Both | Boxes::Paired | Boxes::Whole | Boxes::Sealed => {
                stations.extend([site(0), site(1)]);
                (vec![lan([(0, 0), (2, 0)]), lan([(1, 0), (3, 0)])], [(2, 1), (3, 1)])
            }
        };
        match between {
            None => cables.insert(0, fibre(setup.fibre.clone(), ends)),
            Some(node) => {
                let half =
                    LinkConfig { delay: setup.fibre.delay.divided_by(2), ..setup.fibre.clone() };
                let middle = stations.len();
                stations.push(Station::Between(node));
                cables.push(fibre(half.clone(), [ends[0], (middle, 0)]));
                cables.push(fibre(half, [(middle, 1), ends[1]]));
            }
        }
        if let Some(from) = setup.detour_from {
            add_detour(&mut stations, &mut cables, setup, from);
        }
        let nodes = Nodes::new(stations, &cables, setup.seed).expect("valid");
        Fleet { setup: setup.clone(), nodes }
    }

    pub fn host(&self, number: usize) -> &Host {
        let Station::Host(host) = &self.nodes[number] else { panic!("{number} is no host") };
        host
    }

    pub fn sites(&self) -> impl Iterator<Item = &Site> {
        self.nodes.iter().filter_map(|station| match station {
            Station::Site(site) => Some(site.as_ref()),
            Station::Host(_) | Station::Between(_) => None,
        })
    }

    pub fn site(&self, number: usize) -> &Site {
        self.sites().nth(number).expect("there is a box")
    }

    pub fn accelerators(&self) -> Vec<&Accelerator> {
        self.sites().flat_map(|site| site.accelerators()).collect()
    }

    fn unfinished(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.setup.qps).filter(|&qp| ![0, 1].into_iter().all(|host| self.is_done(host, qp)))
    }

    /// True if the QP is done, or cannot go on because its peer has failed.
    fn is_done(&self, host: usize, qp: usize) -> bool {
        let [own, peer] = [host, 1 - host].map(|host| self.host(host));
        own.is_done(qp) || peer.has_failed(qp) && peer.is_done(qp)
    }

    pub fn now(&self) -> Instant {
        self.nodes.now()
    }

    pub fn run_until(&mut self, end: Instant) {
        while self.nodes.step_until(end) {}
    }

    /// True if every QP has finished.
    pub fn is_finished(&self) -> bool {
        self.unfinished().next().is_none()
    }

    /// Wakes the node in the middle, which has a frame to send.
    pub fn wake(&mut self) {
        self.nodes.iter_mut().for_each(drop);
    }

    /// Runs until every QP has finished, or until the time limit.
    pub fn run(&mut self) -> Outcome {
        let end = Instant::ZERO + self.setup.time_max;
        while self.now() < end && !self.is_finished() {
            let next = end.min(self.now() + Duration::from_ms(1));
            self.run_until(next);
        }
        if !self.setup.kills.is_empty() {
            // Boxes deliver their stores even after a requester has given up.
            self.run_until(self.now() + Duration::from_ms(3000));
        }
        self.outcome()
    }

    pub fn outcome(&mut self) -> Outcome {
        let unfinished: Vec<usize> = self.unfinished().collect();
        let mut outcome = Outcome { ended: self.now().since(Instant::ZERO), ..Outcome::default() };
        for &qp in unfinished.iter().take(4) {
            outcome.unfinished.extend([0, 1].map(|host| self.host(host).describe(qp)));
        }
        for qp in 0..self.setup.qps {
            let [a, b] = [self.host(0), self.host(1)];
            outcome.counts.push([a.count(qp, b), b.count(qp, a)]);
        }
        let has_failed =
            |&qp: &usize| [0, 1].into_iter().any(|host| self.host(host).has_failed(qp));
        let whole: Vec<usize> = (0..self.setup.qps).filter(|qp| !has_failed(qp)).collect();
        for number in [0, 1] {
            let Station::Host(host) = &mut self.nodes[number] else { continue };
            if unfinished.is_empty() {
                host.check_words(&whole);
            }
            outcome.failures.append(&mut host.failures);
            outcome.violations.append(&mut host.violations);
            outcome.violations.append(&mut host.rnic.memory_mut().violations);
        }
        outcome.failures.sort_by_key(|failure| failure.at);
        if !outcome.is_clean() {
            outcome.flows = self.accelerators().into_iter().map(in_words).collect();
        }
        outcome
    }
}

fn in_words(accelerator: &Accelerator) -> String {
    let flows = accelerator.flows().map(|flow| {
        format!(
            "\n  to {} {:#x} from {:x?}: {:?}, {} frames and {} B stored, expects {}, \
             unacknowledged {}, undelivered {}",
            flow.key.responder,
            flow.key.responder_qpn.get(),
            flow.requester_qpn.map(|qpn| qpn.get()),
            flow.state,
            flow.stored_frames,
            flow.stored_bytes,
            flow.expected_psn.get(),
            flow.unacknowledged_psn.get(),
            flow.undelivered_psn.get(),
        )
    });
    flows.take(300).collect()
}

pub fn run(setup: &Setup) -> Outcome {
    Fleet::new(setup).run()
}
