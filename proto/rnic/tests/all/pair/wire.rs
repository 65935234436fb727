//! Connects the devices with simulated cables, with random impairments and the test's own before
//! them.

use super::{VecMemory, ip};
use longhaul_link::{Impairments, LinkConfig};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_rnic::Rnic;
use longhaul_sim::{Cable, Nodes};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wire::{Ecn, Head};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub delay: Duration,
    pub jitter: Duration,
    pub loss: f64,
    pub duplication: f64,
    pub corruption: f64,
    /// Probability of a CE mark on ECN-capable packets.
    pub marking: f64,
}

impl Default for Wire {
    fn default() -> Self {
        Wire {
            delay: Duration::from_us(10),
            jitter: Duration::ZERO,
            loss: 0.0,
            duplication: 0.0,
            corruption: 0.0,
            marking: 0.0,
        }
    }
}

impl Wire {
    /// Number of cables between two devices: several with different delays yield jitter.
    fn ways(&self) -> usize {
        if self.jitter > Duration::ZERO { 8 } else { 1 }
    }
}

type Lose = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// Intercepts every frame on its way out.
pub struct Tap {
    /// Frames sent, by sender; drained by tests that inspect them.
    pub seen: Option<Vec<(usize, Vec<u8>)>>,
    /// Decides for each frame (sender, bytes) whether it is lost, before the random loss.
    pub lose: Lose,
    pub wire: Wire,
    rng: SplitMix64,
}

impl Tap {
    pub fn new(seed: u64) -> Self {
        Tap {
            seen: None,
            lose: Box::new(|_, _| false),
            wire: Wire::default(),
            rng: SplitMix64::new(seed),
        }
    }
}

/// One of several devices, with a side for each cable to each of them.
pub struct Device {
    rnic: Rnic<VecMemory>,
    place: Place,
    tap: Rc<RefCell<Tap>>,
    /// Frames sent.
    pub sent: u64,
    pub arrived: u64,
}

#[derive(Clone, Copy)]
struct Place {
    number: usize,
    devices: usize,
}

impl Place {
    fn side(self, to: usize, way: usize, ways: usize) -> Side {
        (to + self.devices - self.number - 1) % self.devices * ways + way
    }

    /// With two devices each hears the other; with more, each hears the frames to its address, its
    /// own included.
    fn is_heard_by(self, receiver: usize, bytes: &[u8]) -> bool {
        let to = IpAddr::V4(Ipv4Addr::new(bytes[30], bytes[31], bytes[32], bytes[33]));
        if self.devices == 2 || to.is_multicast() {
            receiver != self.number
        } else {
            ip(receiver) == to
        }
    }
}

impl Device {
    /// Connects `rnics` with the wire configured in `tap`.
    pub fn join(rnics: Vec<Rnic<VecMemory>>, seed: u64, tap: &Rc<RefCell<Tap>>) -> Nodes<Device> {
        let wire = tap.borrow().wire;
        let (devices, ways) = (rnics.len(), wire.ways());
        let place = |number| Place { number, devices };
        let device =
            |(n, rnic)| Device { rnic, place: place(n), tap: tap.clone(), sent: 0, arrived: 0 };
        let mut cables = Vec::new();
        for (a, b) in (0..devices).flat_map(|b| (0..=b).map(move |a| (a, b))) {
            for way in 0..ways {
                let delay = wire.delay + wire.jitter.times(way as u64).divided_by(ways as u64);
                let impairments =
                    Impairments { corruption: wire.corruption, ..Impairments::default() };
                cables.push(Cable {
                    ends: [(a, b), (b, a)]
                        .map(|(from, to)| (from, place(from).side(to, way, ways))),
                    wire: LinkConfig {
                        delay,
                        loss: wire.loss,
                        impairments,
                        ..LinkConfig::default()
                    },
                    loss_toward_second_only: false,
                });
            }
        }
        Nodes::new(rnics.into_iter().enumerate().map(device).collect(), &cables, seed)
            .expect("valid")
    }

    pub fn into_rnic(self) -> Rnic<VecMemory> {
        self.rnic
    }
}

impl Deref for Device {
    type Target = Rnic<VecMemory>;

    fn deref(&self) -> &Self::Target {
        &self.rnic
    }
}

impl DerefMut for Device {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.rnic
    }
}

impl Node for Device {
    fn handle_frame(&mut self, now: Instant, _side: Side, frame: &Frame<'_>) {
        self.arrived += 1;
        self.rnic.handle_frame(now, 0, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.rnic.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        let Device { rnic, place, tap, sent, .. } = self;
        rnic.poll_transmit(
            now,
            &mut Leaving { place: *place, tap: &mut tap.borrow_mut(), sent, out },
        );
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.rnic.poll_timeout()
    }
}

struct Leaving<'a> {
    place: Place,
    tap: &'a mut Tap,
    sent: &'a mut u64,
    out: &'a mut dyn Transmit,
}

impl Transmit for Leaving<'_> {
    fn room(&mut self, _side: Side) -> usize {
        // The cables have no rate, so all have the same room.
        self.out.room(0)
    }

    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let Leaving { place, tap: Tap { seen, lose, wire, rng }, sent, out } = self;
        **sent += 1;
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        if let Some(seen) = seen {
            seen.push((place.number, bytes.clone()));
        }
        if lose(place.number, &bytes) {
            return;
        }
        if Ecn::of(&bytes) == Some(Ecn::Capable) && rng.chance(wire.marking) {
            assert!(Ecn::mark(&mut bytes));
        }
        let head = Head::copy_of(&bytes);
        let frame = Frame::received(&head, &bytes).expect("whole");
        for receiver in (0..place.devices).filter(|&receiver| place.is_heard_by(receiver, &bytes)) {
            for _ in 0..1 + u32::from(rng.chance(wire.duplication)) {
                let way = rng.below(wire.ways() as u64) as usize;
                out.transmit(place.side(receiver, way, wire.ways()), &frame);
            }
        }
    }
}
