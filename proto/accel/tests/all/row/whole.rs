//! A whole box: near accelerator, mirrored far one, and the WAN transport behind them.

use super::fallible::Boxed;
use super::{RowOf, Setup, rate};
use longhaul_accel::{Accelerator, Role};
use longhaul_node::{Chain, Deadline, Frame, Mirrored, Node, Side, Transmit};
use longhaul_units::Instant;
use longhaul_wan::{PathConfig, Rate, Seed, Transport};

type Halves = Chain<Accelerator, Chain<Mirrored<Accelerator>, Transport>>;

/// The box of a site, seen from the requester.
enum Seen {
    FromLan(Halves),
    FromWan(Mirrored<Halves>),
}

/// See the module.
pub struct Whole {
    node: Seen,
    setup: Setup,
    role: Role,
    /// Restarts so far; each life has its own seed.
    lives: u64,
}

macro_rules! each {
    ($whole:expr, $node:ident => $call:expr) => {
        match $whole {
            Seen::FromLan($node) => $call,
            Seen::FromWan($node) => $call,
        }
    };
}

impl Whole {
    pub fn new(setup: &Setup, role: Role, lives: u64) -> Self {
        let [near, far] = setup.config(Role::Near).halves(setup.delay.times(2));
        let accelerator = |config| Accelerator::new(config).expect("valid");
        let transport = Transport::new(longhaul_wan::Config {
            paths: vec![PathConfig { rate: Rate::Fixed(rate()), ..PathConfig::default() }],
            box_id: 1 + role as u64,
            seed: Seed::of_scenario(setup.seed << 16 | lives << 8 | role as u64),
            ..longhaul_wan::Config::default()
        });
        let behind = Chain::new(Some(Mirrored(accelerator(far))), Some(transport.expect("valid")));
        let halves = Chain::new(Some(accelerator(near)), Some(behind));
        let node = match role {
            Role::Near => Seen::FromLan(halves),
            Role::Far => Seen::FromWan(Mirrored(halves)),
        };
        Whole { node, setup: setup.clone(), role, lives }
    }

    fn halves(&self) -> &Halves {
        match &self.node {
            Seen::FromLan(halves) | Seen::FromWan(Mirrored(halves)) => halves,
        }
    }

    pub fn transport(&self) -> &Transport {
        self.halves().right().and_then(Chain::right).expect("it is there")
    }
}

impl RowOf<Whole> {
    pub fn of_whole_boxes(setup: &Setup) -> Self {
        RowOf::with(setup, |role| Whole::new(setup, role, 0))
    }
}

impl Boxed for Whole {
    fn reborn(&self) -> Self {
        Whole::new(&self.setup, self.role, self.lives + 1)
    }

    fn serving(&self) -> &Accelerator {
        let halves = self.halves();
        let far = || halves.right().and_then(Chain::left).map(|far| &far.0);
        let serving = if self.role == Role::Near { halves.left() } else { far() };
        serving.expect("it is there")
    }
}

impl Node for Whole {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        each!(&mut self.node, node => node.handle_frame(now, side, frame));
    }

    fn handle_timeout(&mut self, now: Instant) {
        each!(&mut self.node, node => node.handle_timeout(now));
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        each!(&mut self.node, node => node.poll_transmit(now, out));
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        each!(&self.node, node => node.poll_timeout())
    }

    fn intake(&self, side: Side) -> usize {
        each!(&self.node, node => node.intake(side))
    }
}
