//! Two sites with several hosts each and a long path between them, in virtual time: `hosts`
//! requesters at the first site, each with its own responder at the second.
//!
//! Hosts' memory stores nothing: received bytes are only counted.

use crate::host::{self, BASE, Depths, End, Peer};
use longhaul_accel::{Accelerator, Config, Pacing, Policy, Role};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{
    Chain, Deadline, Frame, FrameBuf, FramePool, Gather, Mirrored, Node, Payload, Side, Transmit,
};
use longhaul_rnic::{Completion, Memory, Mtu, RecvWr, Rnic, SendOp, SendWr};
use longhaul_sim::{Cable, Nodes};
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wan::{PathConfig, Rate, Seed, Transport};
use longhaul_wire::Packet;
use std::collections::VecDeque;

/// Longest message.
pub const MESSAGE_MAX: usize = 1 << 20;

/// Memory without bytes.
pub struct Blank {
    pub written: u64,
}

impl Gather for Blank {
    fn gather(&self, _address: u64, out: &mut [u8]) {
        out.fill(0);
    }
}

impl Memory for Blank {
    fn scatter(&mut self, _address: u64, payload: &Payload<'_>) {
        self.written += payload.len() as u64;
    }

    fn fetch_add(&mut self, _address: u64, _add: u64) -> u64 {
        unimplemented!("no atomics here")
    }

    fn compare_swap(&mut self, _address: u64, _compare: u64, _swap: u64) -> u64 {
        unimplemented!("no atomics here")
    }
}

/// The boxes between the sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boxes {
    #[allow(dead_code, reason = "to compare by hand")]
    None,
    /// At the requesters' site only.
    Near,
    Both,
    /// Both, with the WAN transport.
    Whole,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub boxes: Boxes,
    pub config: Config,
    pub hosts: usize,
    pub rate: BitRate,
    /// One-way delay.
    pub delay: Duration,
    pub loss: f64,
    pub seed: u64,
}

type Near = Chain<Accelerator, Chain<Link, Accelerator>>;
type Halves = Chain<Accelerator, Chain<Mirrored<Accelerator>, Transport>>;
type Whole = Chain<Halves, Chain<Link, Mirrored<Halves>>>;

/// The long path, with boxes at its ends.
enum Path {
    Plain(Box<Link>),
    Accelerated(Box<Near>),
    Whole(Box<Whole>),
}

impl Path {
    fn new(setup: &Setup) -> Path {
        let link = LinkConfig {
            delay: setup.delay,
            rate: Some(setup.rate),
            loss: setup.loss,
            seed: setup.seed,
            ..LinkConfig::default()
        };
        let link = Link::new(link).expect("valid");
        let config = Config { wan_pacing: Pacing::Own(setup.rate), ..setup.config.clone() };
        let accelerator = |config: Config| Accelerator::new(config).expect("valid");
        let half = |role| accelerator(Config { role, ..config.clone() });
        let halves = |number: u64| {
            let [near, far] = config.clone().halves(setup.delay.times(2));
            let transport = Transport::new(longhaul_wan::Config {
                paths: vec![PathConfig { rate: Rate::Fixed(setup.rate), ..PathConfig::default() }],
                box_id: number,
                seed: Seed::of_scenario(setup.seed << 8 | number),
                ..longhaul_wan::Config::default()
            });
            let behind =
                Chain::new(Some(Mirrored(accelerator(far))), Some(transport.expect("valid")));
            Chain::new(Some(accelerator(near)), Some(behind))
        };
        match setup.boxes {
            Boxes::None => Path::Plain(Box::new(link)),
            Boxes::Near | Boxes::Both => {
                let far = (setup.boxes == Boxes::Both).then(|| half(Role::Far));
                Path::Accelerated(Box::new(Chain::new(
                    Some(half(Role::Near)),
                    Some(Chain::new(Some(link), far)),
                )))
            }
            Boxes::Whole => {
                let beyond = Chain::new(Some(link), Some(Mirrored(halves(2))));
                Path::Whole(Box::new(Chain::new(Some(halves(1)), Some(beyond))))
            }
        }
    }

    fn node(&mut self) -> &mut dyn Node {
        match self {
            Path::Plain(link) => link.as_mut(),
            Path::Accelerated(row) => row.as_mut(),
            Path::Whole(row) => row.as_mut(),
        }
    }

    /// The accelerators that serve requesters of the first site: the near one and the far one.
    fn serving(&self) -> [Option<&Accelerator>; 2] {
        match self {
            Path::Plain(_) => [None, None],
            Path::Accelerated(row) => [row.left(), row.right().and_then(Chain::right)],
            Path::Whole(row) => {
                let far = row.right().and_then(Chain::right).and_then(|far| far.0.right());
                [row.left().and_then(Chain::left), far.and_then(Chain::left).map(|far| &far.0)]
            }
        }
    }
}

/// A switch without limits: it forwards frames by their IP destination, and unknown ones to the
/// path.
struct Hub {
    /// Side of each host; the path's side follows.
    hosts: Vec<std::net::IpAddr>,
    waiting: Vec<VecDeque<FrameBuf>>,
    pool: FramePool,
}

impl Hub {
    fn new(hosts: Vec<std::net::IpAddr>) -> Hub {
        let waiting = (0..=hosts.len()).map(|_| VecDeque::new()).collect();
        Hub { hosts, waiting, pool: FramePool::new() }
    }
}

impl Node for Hub {
    fn handle_frame(&mut self, _now: Instant, _side: Side, frame: &Frame<'_>) {
        let packet = Packet::parse(frame.head).ok().flatten();
        let to = packet.map(|packet| packet.destination_ip());
        let side = self.hosts.iter().position(|host| Some(*host) == to).unwrap_or(self.hosts.len());
        self.waiting[side].push_back(self.pool.hold(frame));
    }

    fn handle_timeout(&mut self, _now: Instant) {}

    fn poll_transmit(&mut self, _now: Instant, out: &mut dyn Transmit) {
        for (side, waiting) in self.waiting.iter_mut().enumerate() {
            while !waiting.is_empty() && out.room(side) > 0 {
                out.transmit_held(side, &waiting.pop_front().unwrap());
            }
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        None
    }
}

enum Station {
    Host(Box<Rnic<Blank>>),
    Hub(Box<Hub>),
    Path(Path),
}

macro_rules! each {
    ($station:expr, $node:ident => $call:expr) => {
        match $station {
            Station::Host($node) => $call,
            Station::Hub($node) => $call,
            Station::Path(path) => {
                let $node = path.node();
                $call
            }
        }
    };
}

impl Node for Station {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        each!(self, node => node.handle_frame(now, side, frame));
    }

    fn handle_timeout(&mut self, now: Instant) {
        each!(self, node => node.handle_timeout(now));
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        each!(self, node => node.poll_transmit(now, out));
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        match self {
            Station::Host(host) => host.poll_timeout(),
            Station::Hub(hub) => hub.poll_timeout(),
            Station::Path(Path::Plain(link)) => link.poll_timeout(),
            Station::Path(Path::Accelerated(row)) => row.poll_timeout(),
            Station::Path(Path::Whole(row)) => row.poll_timeout(),
        }
    }
}

/// A queue pair of a requester and its responder's.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Index of both hosts.
    pub tenant: usize,
    index: usize,
}

/// See the module.
pub struct Sites {
    nodes: Nodes<Station>,
    hosts: usize,
    /// Both ends of each pair.
    ends: Vec<[End; 2]>,
}

/// Index of a host among the nodes: requesters, then responders, then the path.
fn place(hosts: usize, site: usize, tenant: usize) -> usize {
    site * hosts + tenant
}

impl Sites {
    pub fn new(setup: &Setup) -> Sites {
        let hosts = setup.hosts;
        let host = |number: usize| {
            let config =
                longhaul_rnic::Config { report_credits: false, ..host::config(number, setup.rate) };
            Station::Host(Box::new(Rnic::new(config, Blank { written: 0 })))
        };
        let hub = |site: usize| {
            Station::Hub(Box::new(Hub::new(
                (0..hosts).map(|tenant| host::ip(place(hosts, site, tenant))).collect(),
            )))
        };
        let mut stations: Vec<Station> = (0..2 * hosts).map(host).collect();
        let path = stations.len();
        stations.extend([Station::Path(Path::new(setup)), hub(0), hub(1)]);
        let rate = BitRate::from_bps(4 * setup.rate.as_bps());
        let wire = LinkConfig { delay: Duration::from_us(1), rate, ..LinkConfig::default() };
        let cable = |ends| Cable { ends, wire: wire.clone(), loss_toward_second_only: false };
        let mut cables = Vec::new();
        for site in 0..2 {
            let hub = path + 1 + site;
            for tenant in 0..hosts {
                cables.push(cable([(place(hosts, site, tenant), 0), (hub, tenant)]));
            }
            cables.push(cable([(hub, hosts), (path, site)]));
        }
        let nodes = Nodes::new(stations, &cables, setup.seed).expect("valid");
        Sites { nodes, hosts, ends: Vec::new() }
    }

    pub fn now(&self) -> Instant {
        self.nodes.now()
    }

    pub fn host(&mut self, site: usize, tenant: usize) -> &mut Rnic<Blank> {
        let at = place(self.hosts, site, tenant);
        let Station::Host(host) = &mut self.nodes[at] else { unreachable!("hosts come first") };
        host
    }

    /// The accelerators that serve requesters of the first site.
    pub fn boxes(&self) -> [Option<&Accelerator>; 2] {
        let Station::Path(path) = &self.nodes[2 * self.hosts] else {
            unreachable!("behind the hosts")
        };
        path.serving()
    }

    /// Creates a queue pair from the tenant's requester to its responder, `depth` work requests
    /// deep.
    pub fn connect(&mut self, tenant: usize, depth: u32, rnr_retry: u8) -> Pair {
        let depths = Depths { cq: 4 * depth, sq: depth, rq: depth };
        let now = self.now();
        let ends = [0, 1].map(|site| End::open(self.host(site, tenant), MESSAGE_MAX, depths));
        let index = self.ends.len();
        let psns =
            [0xff_ff00 + index as u32 * 77, 1000 + index as u32 * 99].map(|psn| psn & 0xff_ffff);
        for site in [0, 1] {
            let peer = Peer { host: place(self.hosts, 1 - site, tenant), qpn: ends[1 - site].qpn };
            let psns = [psns[site], psns[1 - site]];
            host::join(
                self.host(site, tenant),
                now,
                ends[site].qpn,
                &peer,
                psns,
                Mtu::B4096,
                rnr_retry,
            );
        }
        self.ends.push(ends);
        Pair { tenant, index }
    }

    /// Posts a message identified by `wr_id`.
    pub fn post(&mut self, pair: Pair, send: bool, bytes: usize, wr_id: u64) {
        let [local, remote] = &self.ends[pair.index];
        let op = match send {
            true => SendOp::Send { immediate: None, invalidate: None },
            false => {
                SendOp::Write { remote_address: BASE, rkey: remote.keys.rkey, immediate: None }
            }
        };
        let segments = [local.segment(0, bytes)];
        let wr = SendWr {
            wr_id,
            op,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        let (now, qpn) = (self.now(), local.qpn);
        self.host(0, pair.tenant).post_send(now, qpn, &wr).unwrap();
    }

    pub fn post_receive(&mut self, pair: Pair, bytes: usize) {
        let remote = &self.ends[pair.index][1];
        let (qpn, segments) = (remote.qpn, [remote.segment(0, bytes)]);
        self.host(1, pair.tenant)
            .post_recv(qpn, &RecvWr { wr_id: 0, segments: &segments })
            .unwrap();
    }

    /// Completions of the pair's requester, or of its responder.
    pub fn completions(&mut self, pair: Pair, site: usize) -> Vec<Completion> {
        let cq = self.ends[pair.index][site].cq;
        host::completions(self.host(site, pair.tenant), cq)
    }

    /// Returns `false` if nothing happens until `end`.
    pub fn step(&mut self, end: Instant) -> bool {
        self.nodes.step_until(end)
    }
}

/// A policy with one mode for all flows, and stores that a slow path fills soon.
pub fn small_stores(mode: longhaul_accel::Mode) -> Config {
    Config {
        policy: Policy::all(mode),
        flow_bytes_max: 8 << 20,
        ack_window_bytes: 2 << 20,
        ack_first_bytes: 512 << 10,
        total_bytes_max: 32 << 20,
        ..Config::default()
    }
}
