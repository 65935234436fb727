//! Two software RNICs, each with or without an accelerator, and a fibre between them, in virtual
//! time.
//!
//! Any of them may be stalled for a while, like programs on a busy machine.

use crate::host::{self, BASE, Depths, End, LOCAL, REMOTE, Terms};
use crate::script::{Sink, deliver};
use longhaul_accel::{Accelerator, Config, Pacing};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Chain, Deadline, Frame, Gather, Mirrored, Node, Payload, Side, Transmit};
use longhaul_rnic::{Completion, Memory, Mtu, Rnic};
use longhaul_sim::{Cable, Nodes};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Boxes and fibre: one program, as in the lab.
const MIDDLE: usize = 2;

pub struct Bytes(pub Vec<u8>);

impl Gather for Bytes {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = (address - BASE) as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

impl Memory for Bytes {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let at = (address - BASE) as usize;
        payload.copy_to(&mut self.0[at..at + payload.len()]);
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        let found = self.word(address);
        self.set_word(address, found.wrapping_add(add));
        found
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let found = self.word(address);
        if found == compare {
            self.set_word(address, swap);
        }
        found
    }
}

impl Bytes {
    /// The 8 bytes at `address`.
    pub fn word(&self, address: u64) -> u64 {
        let at = (address - BASE) as usize;
        u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn set_word(&mut self, address: u64, value: u64) {
        let at = (address - BASE) as usize;
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

type Middle = Chain<Accelerator, Chain<Link, Mirrored<Accelerator>>>;

enum Program {
    Host(Box<Rnic<Bytes>>),
    Middle(Box<Middle>),
}

/// Frames waiting for each program.
type Waiting = Rc<[Cell<usize>; 3]>;

/// A program that may be stalled: frames to it wait, and beyond a limit its senders must wait too.
pub struct Place {
    program: Program,
    number: usize,
    held_until: Instant,
    inbox: VecDeque<(Side, Vec<u8>)>,
    waiting: Waiting,
}

/// Frames that may wait for a stalled program before its senders must wait too.
const INBOX_MAX: usize = 1024;

impl Place {
    fn new(number: usize, program: Program, waiting: &Waiting) -> Place {
        let (held_until, inbox) = (Instant::ZERO, VecDeque::new());
        Place { program, number, held_until, inbox, waiting: waiting.clone() }
    }

    fn node(&mut self) -> &mut dyn Node {
        match &mut self.program {
            Program::Host(host) => host,
            Program::Middle(middle) => middle,
        }
    }
}

impl Node for Place {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        if self.held_until <= now {
            return self.node().handle_frame(now, side, frame);
        }
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.inbox.push_back((side, bytes));
        self.waiting[self.number].set(self.inbox.len());
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.held_until > now {
            return;
        }
        while let Some((side, bytes)) = self.inbox.pop_front() {
            deliver(self.node(), now, side, &bytes);
        }
        self.waiting[self.number].set(0);
        self.node().handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        if self.held_until <= now {
            let (number, waiting) = (self.number, self.waiting.clone());
            self.node().poll_transmit(now, &mut Bounded { number, waiting, out });
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if !self.inbox.is_empty() {
            return Some(Deadline { at: self.held_until, reason: "held up" });
        }
        let deadline = match &self.program {
            Program::Host(host) => host.poll_timeout(),
            Program::Middle(middle) => middle.poll_timeout(),
        };
        deadline.map(|d| Deadline { at: d.at.max(self.held_until), ..d })
    }
}

/// The inbox of a program.
struct Bounded<'a> {
    number: usize,
    waiting: Waiting,
    out: &'a mut dyn Transmit,
}

impl Transmit for Bounded<'_> {
    fn room(&mut self, side: Side) -> usize {
        let to = if self.number == MIDDLE { side } else { MIDDLE };
        self.out.room(side).min(INBOX_MAX.saturating_sub(self.waiting[to].get()))
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.out.transmit(side, frame);
    }
}

/// Host, boxes and fibre, host.
pub struct Line {
    pub now: Instant,
    nodes: Nodes<Place>,
    pub ends: Vec<End>,
    hold_ups: Option<(SplitMix64, Instant)>,
}

#[derive(Clone, Copy)]
pub struct Setup {
    pub boxes: [bool; 2],
    pub cm: bool,
    pub loss: f64,
    pub seed: u64,
    pub km: u64,
    pub memory: usize,
    pub depth: u32,
    /// Programs and boxes stall for 5 to 20 ms at times.
    pub hold_ups: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            boxes: [true, true],
            cm: true,
            loss: 0.0,
            seed: 1,
            km: 1000,
            memory: 8 << 20,
            depth: 128,
            hold_ups: false,
        }
    }
}

const TERMS: Terms = Terms { psns: [0xff_ff00, 5000], mtu: Mtu::B4096 };

impl Line {
    pub fn new(setup: Setup) -> Line {
        let rate = BitRate::from_gbps(10).expect("not zero");
        let host = |host: usize| {
            Program::Host(Box::new(Rnic::new(
                host::config(host, rate),
                Bytes(vec![0; setup.memory]),
            )))
        };
        let [wan_pacing, lan_pacing] = [Pacing::Own(rate), Pacing::Own(rate)];
        let config = Config { wan_pacing, lan_pacing, ..Config::default() };
        let [near, far] = setup
            .boxes
            .map(|wanted| wanted.then(|| Accelerator::new(config.clone()).expect("valid")));
        let mut link = LinkConfig::fibre_km(setup.km, rate);
        link.loss = setup.loss;
        link.seed = setup.seed;
        let link = Link::new(link).expect("valid");
        let middle = Chain::new(near, Some(Chain::new(Some(link), far.map(Mirrored))));
        let waiting = Waiting::default();
        let programs = [host(LOCAL), host(REMOTE), Program::Middle(Box::new(middle))];
        let places =
            programs.into_iter().enumerate().map(|(n, program)| Place::new(n, program, &waiting));
        let cables = [LOCAL, REMOTE].map(|host| Cable {
            ends: [(host, 0), (MIDDLE, host)],
            wire: LinkConfig::default(),
            loss_toward_second_only: false,
        });
        let mut line = Line {
            now: Instant::ZERO,
            nodes: Nodes::new(places.collect(), &cables, setup.seed).expect("valid"),
            ends: Vec::new(),
            hold_ups: setup.hold_ups.then(|| (SplitMix64::new(setup.seed ^ 0x401d), Instant::ZERO)),
        };
        line.connect(setup);
        line
    }

    pub fn host(&self, host: usize) -> &Rnic<Bytes> {
        let Program::Host(rnic) = &self.nodes[host].program else { panic!("{host} is no host") };
        rnic
    }

    pub fn host_mut(&mut self, host: usize) -> &mut Rnic<Bytes> {
        let Program::Host(rnic) = &mut self.nodes[host].program else {
            panic!("{host} is no host")
        };
        rnic
    }

    fn box_mut(&mut self, place: usize) -> Option<&mut Accelerator> {
        let Program::Middle(middle) = &mut self.nodes[MIDDLE].program else { panic!("no host") };
        if place == LOCAL {
            middle.left_mut()
        } else {
            Some(&mut middle.right_mut()?.right_mut()?.0)
        }
    }

    pub fn boxes(&self) -> impl Iterator<Item = &Accelerator> {
        let Program::Middle(middle) = &self.nodes[MIDDLE].program else { panic!("no host") };
        let far = middle.right().and_then(|right| right.right()).map(|mirrored| &mirrored.0);
        middle.left().into_iter().chain(far)
    }

    fn connect(&mut self, setup: Setup) {
        let depths = Depths { cq: 1 << 14, sq: setup.depth, rq: 4096 };
        let ends = [LOCAL, REMOTE].map(|host| End::open(self.host_mut(host), setup.memory, depths));
        for host in [LOCAL, REMOTE] {
            host::connect(self.host_mut(host), Instant::ZERO, &ends, host, TERMS);
        }
        if setup.cm {
            for (from, bytes) in host::connection_messages(&ends, TERMS) {
                for place in [LOCAL, REMOTE] {
                    let Some(node) = self.box_mut(place) else { continue };
                    deliver(node, Instant::ZERO, usize::from(place != from), &bytes);
                    node.poll_transmit(Instant::ZERO, &mut Sink::default());
                }
            }
        }
        self.ends = ends.into();
    }

    /// Lets every program send, and advances to the next event. Returns `false` if there is none.
    pub fn step(&mut self) -> bool {
        self.hold_somebody_up();
        let happens = self.nodes.step();
        self.now = self.nodes.now();
        happens
    }

    /// Stalls one of the programs.
    fn hold_somebody_up(&mut self) {
        let Some((rng, at)) = &mut self.hold_ups else { return };
        if *at > self.now {
            // Offers the waiting frames again.
            let _ = self.nodes.iter_mut();
            return;
        }
        let until = self.now + Duration::from_us(5000 + rng.below(15_000));
        *at = self.now + Duration::from_us(rng.below(60_000));
        let whom = rng.below(3) as usize;
        self.nodes[whom].held_until = until;
    }

    pub fn completions(&mut self, host: usize) -> Vec<Completion> {
        let cq = self.ends[host].cq;
        host::completions(self.host_mut(host), cq)
    }
}
