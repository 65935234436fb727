//! A site's box, which may be killed.

use super::{Boxes, Setup};
use longhaul_accel::{Config, Pacing, Policy};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_readahead::Protocol;
use longhaul_units::{Duration, Instant};
use longhaul_wan::{PathConfig, Rate};
use longhaul_wan_box::WanBox;
use std::collections::VecDeque;

/// A time during which a box is dead or the path is cut.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub at: Instant,
    pub length: Duration,
}

/// A box. Side 0 is the LAN.
pub struct Site {
    setup: Setup,
    number: usize,
    state: State,
    kills: VecDeque<Outage>,
    lives: u64,
}

enum State {
    Runs(Box<WanBox>),
    Dead { until: Instant },
}

impl Site {
    pub fn new(setup: &Setup, number: usize) -> Site {
        Site {
            setup: setup.clone(),
            number,
            state: State::Runs(Box::new(start(setup, number, 0))),
            kills: setup.kills[number].iter().copied().collect(),
            lives: 0,
        }
    }

    fn live(&mut self, now: Instant) {
        if let State::Dead { until } = self.state
            && until <= now
        {
            self.lives += 1;
            self.state = State::Runs(Box::new(start(&self.setup, self.number, self.lives)));
        }
        if let State::Runs(_) = self.state
            && let Some(kill) = self.kills.front().copied().filter(|kill| kill.at <= now)
        {
            self.kills.pop_front();
            self.state = State::Dead { until: now + kill.length };
        }
    }
}

/// A box of this site, in its `lives`th life.
fn start(setup: &Setup, number: usize, lives: u64) -> WanBox {
    let accelerator = Config {
        policy: Policy::all(setup.mode),
        wan_pacing: Pacing::Own(setup.rate()),
        lan_pacing: Pacing::Own(setup.rate()),
        ..Config::default()
    };
    let round_trip = setup.delay.times(2);
    let config = if setup.boxes == Boxes::Alone {
        longhaul_wan_box::Config::alone(accelerator)
    } else {
        let path = PathConfig { rate: Rate::Fixed(setup.rate()), ..PathConfig::default() };
        let transport = longhaul_wan::Config {
            box_id: 1 + number as u64,
            ..longhaul_wan::Config::for_paths(vec![path], setup.rate().bytes_in(round_trip))
        };
        longhaul_wan_box::Config::whole(accelerator, transport, round_trip)
    };
    let read_ahead = longhaul_readahead::Config::of(&[Protocol::Nvme]);
    let config = config
        .reading_ahead((setup.boxes == Boxes::ReadAhead).then_some(read_ahead))
        .seeded(setup.seed << 16 | lives << 8 | number as u64);
    WanBox::new(config).expect("valid")
}

impl Node for Site {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.live(now);
        if let State::Runs(node) = &mut self.state {
            node.handle_frame(now, side, frame);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.live(now);
        if let State::Runs(node) = &mut self.state {
            node.handle_timeout(now);
        }
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        if let State::Runs(node) = &mut self.state {
            node.poll_transmit(now, out);
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        match &self.state {
            State::Dead { until } => Some(Deadline { at: *until, reason: "restart" }),
            State::Runs(node) => {
                let kill = self.kills.front().map(|kill| Deadline { at: kill.at, reason: "kill" });
                Deadline::earliest(node.poll_timeout(), kill)
            }
        }
    }
}
