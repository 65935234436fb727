//! A site's box, which may be killed, and its end of a path that may be cut.

use super::{Boxes, Setup};
use longhaul_accel::{Config, Pacing, Policy};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_readahead::Protocol;
use longhaul_units::{Duration, Instant};
use longhaul_wan::{PathConfig, Rate};
use longhaul_wan_box::WanBox;
use std::collections::VecDeque;

const LAN: Side = 0;

/// A time during which a box is dead or the path is cut.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub at: Instant,
    pub length: Duration,
}

impl Outage {
    pub fn includes(&self, now: Instant) -> bool {
        self.at <= now && now < self.at + self.length
    }
}

/// A box, or a cable in its place. Side 0 is the LAN.
pub struct Site {
    setup: Setup,
    number: usize,
    state: State,
    kills: VecDeque<Outage>,
    lives: u64,
}

enum State {
    Forwards(Box<Forwarder>),
    Dead { until: Instant },
}

enum Forwarder {
    Box(Box<WanBox>),
    /// Frames on their way to each side.
    Cable([VecDeque<Vec<u8>>; 2]),
}

impl Site {
    pub fn new(setup: &Setup, number: usize) -> Site {
        Site {
            setup: setup.clone(),
            number,
            state: State::Forwards(Box::new(Forwarder::new(setup, number, 0))),
            kills: setup.kills[number].iter().copied().collect(),
            lives: 0,
        }
    }

    fn live(&mut self, now: Instant) {
        if let State::Dead { until } = self.state
            && until <= now
        {
            self.lives += 1;
            let forwarder = Forwarder::new(&self.setup, self.number, self.lives);
            self.state = State::Forwards(Box::new(forwarder));
        }
        if let State::Forwards(_) = self.state
            && let Some(kill) = self.kills.front().copied().filter(|kill| kill.at <= now)
        {
            self.kills.pop_front();
            self.state = State::Dead { until: now + kill.length };
        }
    }

    fn is_cut(&self, now: Instant) -> bool {
        self.setup.cuts.iter().any(|cut| cut.includes(now))
    }
}

impl Forwarder {
    fn new(setup: &Setup, number: usize, lives: u64) -> Forwarder {
        if setup.boxes == Boxes::None {
            return Forwarder::Cable(Default::default());
        }
        let accelerator = Config {
            policy: Policy::all(setup.mode),
            wan_pacing: Pacing::Own(setup.rate()),
            lan_pacing: Pacing::Own(setup.rate()),
            ..Config::default()
        };
        let path = PathConfig { rate: Rate::Fixed(setup.rate()), ..PathConfig::default() };
        let round_trip = setup.delay.times(2);
        let config = match setup.boxes {
            Boxes::None | Boxes::Alone => longhaul_wan_box::Config::alone(accelerator),
            Boxes::Whole | Boxes::ReadAhead => {
                let transport = longhaul_wan::Config {
                    box_id: 1 + number as u64,
                    ..longhaul_wan::Config::for_paths(vec![path], setup.rate().bytes_in(round_trip))
                };
                longhaul_wan_box::Config::whole(accelerator, transport, round_trip)
            }
        };
        let read_ahead = longhaul_readahead::Config::of(&[Protocol::Nvme]);
        let config = config
            .reading_ahead((setup.boxes == Boxes::ReadAhead).then_some(read_ahead))
            .seeded(setup.seed << 16 | lives << 8 | number as u64);
        Forwarder::Box(Box::new(WanBox::new(config).expect("valid")))
    }
}

/// Drops frames towards a path that is cut.
struct Cut<'a>(&'a mut dyn Transmit);

impl Transmit for Cut<'_> {
    fn room(&mut self, side: Side) -> usize {
        if side == LAN { self.0.room(side) } else { usize::MAX }
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if side == LAN {
            self.0.transmit(side, frame);
        }
    }
}

impl Forwarder {
    fn transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        match self {
            Forwarder::Box(node) => node.poll_transmit(now, out),
            Forwarder::Cable(queues) => {
                for (side, queue) in queues.iter_mut().enumerate() {
                    while !queue.is_empty() && out.room(side) > 0 {
                        let bytes = queue.pop_front().expect("not empty");
                        out.transmit(side, &Frame::opaque(&bytes));
                    }
                }
            }
        }
    }
}

impl Node for Site {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.live(now);
        if side != LAN && self.is_cut(now) {
            return;
        }
        let State::Forwards(forwarder) = &mut self.state else { return };
        match &mut **forwarder {
            Forwarder::Box(node) => node.handle_frame(now, side, frame),
            Forwarder::Cable(queues) => {
                let mut bytes = vec![0; frame.len()];
                frame.write_to(&mut bytes);
                queues[1 - side].push_back(bytes);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.live(now);
        let State::Forwards(forwarder) = &mut self.state else { return };
        if let Forwarder::Box(node) = &mut **forwarder {
            node.handle_timeout(now);
        }
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        let is_cut = self.is_cut(now);
        let State::Forwards(forwarder) = &mut self.state else { return };
        if is_cut {
            forwarder.transmit(now, &mut Cut(out));
        } else {
            forwarder.transmit(now, out);
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let own = match &self.state {
            State::Dead { until } => return Some(Deadline { at: *until, reason: "restart" }),
            State::Forwards(forwarder) => match &**forwarder {
                Forwarder::Box(node) => node.poll_timeout(),
                Forwarder::Cable(_) => None,
            },
        };
        let kill = self.kills.front().map(|kill| Deadline { at: kill.at, reason: "kill" });
        Deadline::earliest(own, kill)
    }
}
