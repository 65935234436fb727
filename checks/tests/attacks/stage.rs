//! Two hosts, two whole boxes, a fibre with an attacker in its middle, and an oracle that knows
//! every byte, completion and sum.

use crate::attacker::{Attacker, Crossing, Power, Shared, Tally};
use crate::fleet::boxes::Boxes;
use crate::fleet::plan::Mix;
use crate::fleet::{Fleet, Outcome, Setup};
use longhaul_link::LinkConfig;
use longhaul_units::{BitRate, Duration};
use longhaul_wan::Transport;

/// Whether the boxes have keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    Without,
    With,
}

pub const BOTH: [Keys; 2] = [Keys::Without, Keys::With];

/// Queue pairs with every operation in both directions, for about a fifth of a second.
pub fn setup(seed: u64, boxes: Boxes) -> Setup {
    let rate = BitRate::from_gbps(1).expect("not zero");
    Setup {
        qps: 4,
        mix: Mix::Everything,
        messages: 200,
        size_max: 16 << 10,
        depth: 4,
        rate,
        fibre: LinkConfig::fibre_km(400, rate),
        stagger: Duration::from_ms(20),
        time_max: Duration::from_ms(60_000),
        ..Setup::new(seed, boxes)
    }
}

pub fn boxes(keys: Keys) -> Boxes {
    if keys == Keys::With { Boxes::Sealed } else { Boxes::Whole }
}

/// The scene of an attack.
pub struct Stage {
    pub fleet: Fleet,
    pub tally: Shared<Tally>,
    setup: Setup,
}

impl Stage {
    pub fn new(setup: &Setup, power: Power) -> Stage {
        let attacker = Attacker::new(power);
        let tally = attacker.tally();
        Stage { fleet: Fleet::with(setup, Some(Box::new(attacker))), tally, setup: setup.clone() }
    }

    pub fn with(keys: Keys, power: Power) -> Stage {
        Stage::new(&setup(1, boxes(keys)), power)
    }

    /// Queues a datagram for the attacker to send.
    pub fn send(&mut self, toward: usize, bytes: Vec<u8>) {
        self.tally.borrow_mut().to_send.push(Crossing::new(toward, bytes));
        self.fleet.wake();
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.fleet.now() + time;
        self.fleet.run_until(end);
    }

    /// Runs until the boxes have met and carry the hosts' traffic.
    pub fn meet(&mut self) {
        self.meet_despite(|_| {});
    }

    fn meet_despite(&mut self, mut attack: impl FnMut(&mut Stage)) {
        for _ in 0..3000 {
            attack(self);
            self.run_for(Duration::from_ms(1));
            if [0, 1].iter().all(|&n| self.transport(n).counters().tunnelled > 20) {
                return;
            }
        }
        panic!("the boxes do not meet: {:#?}", [0, 1].map(|n| *self.transport(n).counters()));
    }

    /// Lets the boxes meet, and then calls `attack` each millisecond until the hosts are done.
    pub fn attacked(&mut self, attack: impl FnMut(&mut Stage)) -> Outcome {
        self.meet();
        self.attacked_on(attack)
    }

    /// Like `attacked`, with an attack that also runs while the boxes meet.
    pub fn attacked_from_the_first(&mut self, mut attack: impl FnMut(&mut Stage)) -> Outcome {
        self.meet_despite(&mut attack);
        self.attacked_on(attack)
    }

    fn attacked_on(&mut self, mut attack: impl FnMut(&mut Stage)) -> Outcome {
        let mut rounds = 0;
        while !self.fleet.is_finished() && rounds < 20_000 {
            attack(self);
            self.run_for(Duration::from_ms(1));
            rounds += 1;
        }
        assert!(rounds > 50, "it was over after {rounds} rounds");
        self.run_for(Duration::from_ms(500));
        self.fleet.outcome()
    }

    pub fn transport(&self, number: usize) -> &Transport {
        self.fleet.site(number).transport().expect("a whole box")
    }

    pub fn sealed(&self, number: usize) -> &longhaul_seal::Counters {
        self.fleet.site(number).seal().expect("a box with keys").counters()
    }

    /// Frames that a site's seal dropped.
    pub fn seal_dropped(&self, number: usize, reason: longhaul_seal::DropReason) -> u64 {
        self.sealed(number).drops.get(reason)
    }

    /// Frames that a site's transport dropped.
    pub fn transport_dropped(&self, number: usize, reason: longhaul_wan::DropReason) -> u64 {
        self.transport(number).counters().drops.get(reason)
    }

    /// Frames that a site's accelerators dropped.
    pub fn accelerator_dropped(&self, number: usize, reason: longhaul_accel::DropReason) -> u64 {
        let all = self.fleet.site(number).accelerators();
        all.iter().map(|accelerator| accelerator.counters().drops.get(reason)).sum()
    }

    /// ACKs for unseen packets that a site's accelerators forwarded.
    pub fn acks_unseen(&self, number: usize) -> u64 {
        let all = self.fleet.site(number).accelerators();
        all.iter().map(|accelerator| accelerator.counters().acks_unseen).sum()
    }

    /// Checks that no box exceeds its configured bounds.
    pub fn assert_bounded(&self) {
        for site in self.fleet.sites() {
            for accelerator in site.accelerators() {
                let config = accelerator.config();
                let flows = accelerator.flows().count();
                assert!(flows <= config.flows_max as usize, "{flows} flows");
                let stored: u64 = accelerator.flows().map(|flow| flow.stored_bytes).sum();
                assert!(stored <= config.total_bytes_max, "{stored} bytes stored");
            }
            let Some(transport) = site.transport() else { continue };
            let config = transport.config();
            assert!(transport.sessions().count() <= config.sessions_max as usize);
            for session in transport.sessions() {
                assert!(session.send_bytes_peak <= config.send_bytes_max, "{session:?}");
                let reserve = config.receive_bytes_max / 16;
                assert!(
                    session.receive_bytes_peak <= config.receive_bytes_max + reserve,
                    "{session:?}"
                );
                assert!(session.streams_in <= config.streams_max as usize);
            }
        }
    }

    /// Checks that every byte, completion and sum is right, and nothing has failed or is left.
    pub fn assert_unharmed(&self, outcome: &Outcome) {
        let Outcome { failures, violations, unfinished, flows, .. } = outcome;
        assert!(
            outcome.is_clean(),
            "{failures:#?}\n{violations:#?}\n{unfinished:#?}\n{}",
            flows.join("\n")
        );
        for (count, messages) in
            outcome.counts.iter().flatten().map(|count| (count, count.messages))
        {
            assert_eq!((count.completed, count.placed), (messages, messages));
        }
        self.assert_bounded();
    }

    /// Checks that with keys no RDMA has left in cleartext.
    pub fn assert_closed(&self) {
        if self.setup.boxes == Boxes::Sealed {
            assert_eq!(self.tally.borrow().in_the_clear, 0, "RDMA in the clear");
        }
    }
}
