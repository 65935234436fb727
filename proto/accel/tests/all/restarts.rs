//! Boxes are killed at random times and restart with empty memory; docs/semantics.md lists the
//! permitted results.

use crate::fleet::boxes::{Boxes, Kill};
use crate::fleet::plan::Mix;
use crate::fleet::{Connect, Count, End, Failure, Fleet, Outcome, Setup};
use longhaul_accel::Mode;
use longhaul_accel::promise::{FirstFailure, Lost, Seen};
use longhaul_link::LinkConfig;
use longhaul_rnic::{Mtu, Status};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use std::ops::Range;

/// Traffic of tens of milliseconds, with kills within it. The NICs' retries outlast each absence.
fn drawn(seed: u64, mode: Mode) -> Setup {
    let mut rng = SplitMix64::new(seed ^ 0x7265_7374_6172_7473);
    let rng = &mut rng;
    let setup =
        Setup::new(seed, one_of(rng, &[Boxes::Both, Boxes::Paired, Boxes::Whole, Boxes::Whole]));
    let km = one_of(rng, &[10, 1000, 1000]);
    let mut fibre = LinkConfig::fibre_km(km, setup.rate);
    fibre.loss = one_of(rng, &[0.0, 1e-3, 1e-2]);
    let kills = (0..1 + rng.below(2)).map(|_| Kill {
        number: rng.below(2) as usize,
        at: Instant::ZERO + Duration::from_us(rng.below(50_000)),
        away: Duration::from_ms(one_of(rng, &[0, 10, 150, 700])),
    });
    let kills = kills.collect();
    let mut setup = Setup {
        mode,
        connect: one_of(rng, &[Connect::Aside, Connect::Manager]),
        qps: one_of(rng, &[1, 2, 4]),
        both_ways: rng.chance(0.5),
        mix: one_of(rng, &[Mix::Everything, Mix::SendsAndWrites, Mix::WritesAndReads]),
        messages: 300,
        size_max: one_of(rng, &[2 << 10, 32 << 10, 64 << 10]),
        depth: one_of(rng, &[8, 32]),
        receives: 32,
        mtu: one_of(rng, &[Mtu::B1024, Mtu::B4096]),
        fibre,
        kills,
        ..setup
    };
    setup.nic.timeout = 17;
    setup
}

/// Four kills, one each second. The NICs still retransmit six times behind the last one: five are
/// what boxes without memory need to tell a loss from a path that loses (docs/semantics.md).
fn killed_each_second(seed: u64, mode: Mode) -> Setup {
    let mut rng = SplitMix64::new(seed ^ 0x6b69_6c6c);
    let rng = &mut rng;
    let kills = (0..4).map(|second| Kill {
        number: rng.below(2) as usize,
        at: Instant::ZERO + Duration::from_ms(1000 * second) + Duration::from_us(rng.below(50_000)),
        away: Duration::from_ms(one_of(rng, &[0, 10, 150, 400])),
    });
    let mut setup = Setup { kills: kills.collect(), ..drawn(seed, mode) };
    setup.nic.timeout = 19;
    setup
}

fn one_of<T: Copy>(rng: &mut SplitMix64, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

/// Checks one direction of a QP against docs/semantics.md.
struct Judge<'a> {
    setup: &'a Setup,
    fleet: &'a Fleet,
    qp: usize,
    requester: usize,
    count: Count,
    /// The first failure of the QP at either end; those of the other end follow from it.
    failure: Option<&'a Failure>,
}

impl Judge<'_> {
    fn was_killed(&self, number: usize) -> bool {
        self.setup.kills.iter().any(|kill| kill.number == number)
    }

    /// The boxes that lost their memory, seen from the requester.
    fn lost(&self) -> Lost {
        Lost {
            near: self.was_killed(self.requester),
            far: self.was_killed(1 - self.requester) && self.setup.boxes != Boxes::Both,
        }
    }

    /// The violation found, if any.
    fn verdict(&self) -> Option<String> {
        let Count { completed, placed, reached, fence, messages } = self.count;
        let own = self.failure.filter(|failure| failure.host == self.requester);
        let failure = own.map(|failure| {
            let message = self.fleet.host(self.requester).message(self.qp, failure.message);
            FirstFailure {
                is_long: message.kind.places() && message.len > self.setup.mtu.bytes(),
                has_arrived: reached > failure.message,
                is_remote_operation: failure.end == End::Completion(Status::RemoteOperation),
            }
        });
        let is_broken = self.failure.is_some();
        let seen = Seen { messages, completed, placed, fence, is_broken, failure };
        let broken = seen.judge(self.setup.mode, self.lost()).err()?;
        Some(format!("{broken}: {own:?}"))
    }
}

/// Returns the violations of docs/semantics.md in a run.
fn judge(setup: &Setup) -> Vec<String> {
    let mut fleet = Fleet::new(setup);
    let outcome = fleet.run();
    let mut wrong = outcome.violations.clone();
    for (qp, counts) in outcome.counts.iter().enumerate() {
        let failure = outcome.failures.iter().find(|failure| failure.qp == qp);
        let judges = [0, 1].map(|requester| Judge {
            setup,
            fleet: &fleet,
            qp,
            requester,
            count: counts[requester],
            failure,
        });
        wrong.extend(
            judges.iter().filter_map(Judge::verdict).map(|verdict| format!("QP {qp}: {verdict}")),
        );
        let is_lost = judges.iter().any(|judge| judge.count.completed > judge.count.placed);
        if failure.is_none() && !is_lost && !is_finished(&outcome, qp) {
            wrong.push(format!("QP {qp} hangs: {counts:?}"));
        }
    }
    wrong
}

fn is_finished(outcome: &Outcome, qp: usize) -> bool {
    outcome.counts[qp].iter().all(|count| count.completed == count.messages)
}

/// Describes the violations in these runs.
fn runs(seeds: Range<u64>, mode: Mode) -> Option<String> {
    let judged = |seed| {
        let wrong = std::panic::catch_unwind(|| judge(&drawn(seed, mode)));
        wrong.unwrap_or_else(|_| vec!["panicked".into()])
    };
    let bad = seeds.map(|seed| (seed, judged(seed))).filter(|(_, wrong)| !wrong.is_empty());
    let bad: Vec<(u64, Vec<String>)> = bad.inspect(|bad| eprintln!("{mode}: {bad:?}")).collect();
    let (first, _) = bad.first()?;
    let lines = bad.iter().map(|(seed, wrong)| format!("seed {seed}: {}", wrong.join("\n    ")));
    Some(format!(
        "{mode}: {} seeds\n{}\nthe first: {:#?}\nrepeat it with\n    LONGHAUL_SEEDS={first}..{} \
         cargo test -p longhaul-accel --test all restarts::those_of_some_seeds -- --ignored \
         --nocapture",
        bad.len(),
        lines.collect::<Vec<_>>().join("\n"),
        drawn(*first, mode),
        first + 1
    ))
}

fn hold(seeds: Range<u64>, modes: &[Mode]) {
    let wrong: Vec<String> = modes.iter().filter_map(|&mode| runs(seeds.clone(), mode)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn early() {
    hold(0..25, &[Mode::Early]);
}

#[test]
fn far() {
    hold(0..25, &[Mode::Far]);
}

#[test]
fn tail() {
    hold(0..25, &[Mode::Tail]);
}

#[test]
fn off() {
    hold(0..25, &[Mode::Off]);
}

#[test]
fn killed_each_second_they_tell_of_losses() {
    for seed in 0..12 {
        for mode in [Mode::Early, Mode::Tail] {
            let setup = killed_each_second(seed, mode);
            let wrong = judge(&setup);
            assert!(wrong.is_empty(), "{mode}, seed {seed}: {wrong:#?}");
        }
    }
}

#[test]
#[ignore = "nightly: a thousand runs in each mode, with one kill or two"]
fn many() {
    hold(25..1025, &Mode::ALL);
}

#[test]
#[ignore = "by hand: the seeds in LONGHAUL_SEEDS, as in 25..1025"]
fn those_of_some_seeds() {
    let seeds = std::env::var("LONGHAUL_SEEDS").unwrap_or_default();
    let bounds = seeds.split_once("..").map(|(first, end)| (first.parse(), end.parse()));
    if let Some((Ok(first), Ok(end))) = bounds {
        hold(first..end, &Mode::ALL);
    }
}
