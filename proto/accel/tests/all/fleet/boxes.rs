//! The boxes between a host and the fibre.

use super::Setup;
use longhaul_accel::{Accelerator, Config, Pacing, Policy, Role};
use longhaul_node::{Chain, Deadline, Frame, Mirrored, Node, Side, Transmit};
use longhaul_seal::{PeerConfig, PrivateKey, Seal};
use longhaul_units::{Duration, Instant};
use longhaul_wan::{PathConfig, Rate, Seed, Transport};
use longhaul_wan_box::WanBox;
use std::collections::VecDeque;

/// The boxes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boxes {
    None,
    /// An accelerator at the first host only.
    One,
    /// An accelerator at each end.
    Both,
    /// Both, each with a far half.
    Paired,
    /// Whole boxes, with the transport.
    Whole,
    /// Whole boxes with keys: no RDMA in cleartext.
    Sealed,
}

/// Settings of a run's boxes that differ from the defaults.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub accelerator: fn(&mut Config),
    pub transport: fn(&mut longhaul_wan::Config),
    pub seal: fn(&mut longhaul_seal::Config),
}

impl Default for Limits {
    fn default() -> Self {
        Limits { accelerator: |_| {}, transport: |_| {}, seal: |_| {} }
    }
}

type Halves = Chain<Accelerator, Mirrored<Accelerator>>;

enum Parts {
    Box(Box<WanBox>),
    Halves(Box<Halves>),
}

macro_rules! each {
    ($parts:expr, $node:ident => $call:expr) => {
        match $parts {
            Parts::Box($node) => $call,
            Parts::Halves($node) => $call,
        }
    };
}

impl Parts {
    fn new(setup: &Setup, number: usize, lives: u64) -> Parts {
        let mut config = Config {
            policy: Policy::all(setup.mode),
            wan_pacing: Pacing::Own(setup.rate),
            lan_pacing: Pacing::Own(setup.rate),
            seed: setup.seed ^ lives << 8 ^ number as u64,
            ..Config::default()
        };
        (setup.limits.accelerator)(&mut config);
        let made = |config| Parts::Box(Box::new(WanBox::new(config).expect("valid")));
        let round_trip = setup.fibre.delay.times(2);
        match setup.boxes {
            Boxes::None => unreachable!("no box"),
            Boxes::One | Boxes::Both => made(longhaul_wan_box::Config::alone(config)),
            Boxes::Paired => {
                let far = Config {
                    role: Role::Far,
                    wan_pacing: config.lan_pacing.clone(),
                    lan_pacing: Pacing::Unlimited,
                    ..config.clone()
                };
                let accelerator = |config| Some(Accelerator::new(config).expect("valid"));
                let far = accelerator(far).map(Mirrored);
                Parts::Halves(Box::new(Chain::new(accelerator(config), far)))
            }
            Boxes::Whole | Boxes::Sealed => {
                let transport = transport(setup, number, lives);
                let whole = longhaul_wan_box::Config::whole(config, transport, round_trip);
                let mut whole = whole.sealed(seal(setup, number, lives));
                let behind = whole.whole.as_mut().expect("a whole box");
                (setup.limits.transport)(&mut behind.transport);
                behind.seal.iter_mut().for_each(setup.limits.seal);
                made(whole)
            }
        }
    }

    fn accelerators(&self) -> Vec<&Accelerator> {
        match self {
            Parts::Box(made) => std::iter::once(made.near()).chain(made.far()).collect(),
            Parts::Halves(halves) => {
                halves.left().into_iter().chain(halves.right().map(|far| &far.0)).collect()
            }
        }
    }
}

fn transport(setup: &Setup, number: usize, lives: u64) -> longhaul_wan::Config {
    let path = PathConfig { rate: Rate::Fixed(setup.rate), ..PathConfig::default() };
    let round_trip = setup.fibre.delay.times(2);
    longhaul_wan::Config {
        box_id: 1 + number as u64,
        seed: Seed::of_scenario(setup.seed << 16 | lives << 8 | number as u64),
        ..longhaul_wan::Config::for_paths(vec![path], setup.rate.bytes_in(round_trip))
    }
}

/// The key of a site's box.
pub fn key(number: usize) -> PrivateKey {
    PrivateKey::generate(&Seed::new([1 + number as u8; 32]))
}

fn seal(setup: &Setup, number: usize, lives: u64) -> Option<longhaul_seal::Config> {
    let peer = PeerConfig {
        name: format!("box {}", 1 - number),
        public_key: key(1 - number).public(),
        preshared_key: None,
    };
    let seed = Seed::of_scenario(setup.seed << 16 | lives << 8 | 0x80 | number as u64);
    let config = || longhaul_seal::Config::new(key(number), vec![peer], seed);
    (setup.boxes == Boxes::Sealed).then(config)
}

/// When a box is killed, and when it restarts with empty memory.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    pub number: usize,
    pub at: Instant,
    pub away: Duration,
}

/// A box that may be killed. Side 0 is the LAN.
pub struct Site {
    setup: Setup,
    number: usize,
    parts: Parts,
    kills: VecDeque<Kill>,
    back_at: Option<Instant>,
    lives: u64,
}

impl Site {
    pub fn new(setup: &Setup, number: usize) -> Site {
        let mut kills: Vec<Kill> =
            setup.kills.iter().filter(|kill| kill.number == number).copied().collect();
        kills.sort_by_key(|kill| kill.at);
        let parts = Parts::new(setup, number, 0);
        Site { setup: setup.clone(), number, parts, kills: kills.into(), back_at: None, lives: 0 }
    }

    pub fn accelerators(&self) -> Vec<&Accelerator> {
        self.parts.accelerators()
    }

    fn wan_box(&self) -> Option<&WanBox> {
        match &self.parts {
            Parts::Box(made) => Some(made),
            Parts::Halves(_) => None,
        }
    }

    pub fn transport(&self) -> Option<&Transport> {
        self.wan_box()?.transport()
    }

    pub fn seal(&self) -> Option<&Seal> {
        self.wan_box()?.seal()
    }

    fn is_away(&self) -> bool {
        self.back_at.is_some()
    }

    /// Kills and restarts the box at its times.
    fn live(&mut self, now: Instant) {
        if self.back_at.is_some_and(|at| at <= now) {
            self.back_at = None;
            self.lives += 1;
            self.parts = Parts::new(&self.setup, self.number, self.lives);
        }
        if self.kills.front().is_some_and(|kill| kill.at <= now)
            && let Some(kill) = self.kills.pop_front()
        {
            self.back_at = Some(now + kill.away);
        }
    }
}

impl Node for Site {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.live(now);
        if !self.is_away() {
            each!(&mut self.parts, node => node.handle_frame(now, side, frame));
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.live(now);
        if !self.is_away() {
            each!(&mut self.parts, node => node.handle_timeout(now));
        }
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        if !self.is_away() {
            each!(&mut self.parts, node => node.poll_transmit(now, out));
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let own = match self.back_at {
            Some(at) => Some(Deadline { at, reason: "back" }),
            None => each!(&self.parts, node => node.poll_timeout()),
        };
        let kill = self.kills.front().map(|kill| Deadline { at: kill.at, reason: "killed" });
        Deadline::earliest(own, kill)
    }
}
