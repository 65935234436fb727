//! A run with boxes has no error that the run without them lacks.

use crate::fleet::boxes::Boxes;
use crate::fleet::plan::Mix;
use crate::fleet::{Connect, End, Failure, Nic, Outcome, Setup, run};
use longhaul_accel::Mode;
use longhaul_link::{Bursts, Change, Cut, Impairments, LinkConfig, Setting};
use longhaul_rnic::{Mtu, Status};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};
use std::ops::Range;

fn show(outcome: &Outcome) -> String {
    let Outcome { ended, failures, violations, unfinished, flows, .. } = outcome;
    let first: Vec<_> = failures.iter().take(8).collect();
    format!(
        "after {ended}: {} failures, the first: {first:#?}\nviolations: {violations:#?}\n\
         unfinished: {unfinished:#?}\n{}",
        failures.len(),
        flows.join("\n")
    )
}

#[test]
fn plain() {
    for seed in 1..5 {
        let outcome = run(&Setup { qps: 8, ..Setup::new(seed, Boxes::None) });
        assert!(outcome.is_clean(), "{}", show(&outcome));
        let managed =
            Setup { connect: Connect::Manager, lives: 3, ..Setup::new(seed, Boxes::None) };
        let outcome = run(&managed);
        assert!(outcome.is_clean(), "{}", show(&outcome));
    }
}

/// How NCCL, MPI and perftest connect.
mod without_the_connection_manager {
    use super::*;

    fn many(seed: u64, boxes: Boxes, qps: usize, km: u64) -> Setup {
        let setup = Setup::new(seed, boxes);
        let fibre = LinkConfig::fibre_km(km, setup.rate);
        let mix = Mix::WritesAndReads;
        Setup { qps, mix, messages: 64, size_max: 256 << 10, fibre, ..setup }
    }

    fn many_are_served(setup: &Setup) {
        let outcome = run(setup);
        assert!(outcome.is_clean(), "{}", show(&outcome));
    }

    #[test]
    fn a_hundred_without_boxes() {
        many_are_served(&many(1, Boxes::None, 100, 1));
        many_are_served(&many(1, Boxes::None, 100, 1000));
    }

    #[test]
    fn three_hundred_over_one_km() {
        many_are_served(&many(1, Boxes::Both, 300, 1));
    }

    #[test]
    fn a_hundred_over_a_thousand_km() {
        many_are_served(&many(1, Boxes::Both, 100, 1000));
    }

    #[test]
    fn a_hundred_with_the_transport() {
        many_are_served(&many(1, Boxes::Whole, 100, 1));
    }
}

/// QPs are reset with data in flight, and connected again with other PSNs and another UDP source
/// port.
mod reused {
    use super::*;

    fn reused(seed: u64, boxes: Boxes, gap: Duration) -> Setup {
        let setup = Setup::new(seed, boxes);
        Setup {
            qps: 4,
            mix: Mix::SendsAndWrites,
            messages: 400,
            lives: 3,
            lifetime: Duration::from_ms(25) + gap,
            gap,
            ..setup
        }
    }

    fn go_on(boxes: Boxes) {
        for (seed, gap_ms) in [(1, 0), (2, 0), (3, 20), (4, 90)] {
            let outcome = run(&reused(seed, boxes, Duration::from_ms(gap_ms)));
            assert!(outcome.is_clean(), "gap {gap_ms} ms, seed {seed}: {}", show(&outcome));
        }
    }

    #[test]
    fn without_boxes() {
        go_on(Boxes::None);
    }

    #[test]
    fn through_accelerators() {
        go_on(Boxes::Both);
    }

    #[test]
    fn through_whole_boxes() {
        go_on(Boxes::Whole);
    }

    /// Lives that end before their flows are learnt, on a lossy path.
    fn briefly(boxes: Boxes) {
        for seed in [4, 9, 10, 11] {
            let setup = Setup::new(seed, boxes);
            let mut fibre = LinkConfig::fibre_km(1, setup.rate);
            fibre.loss = 1e-2;
            let mut setup = Setup {
                qps: 4,
                mtu: Mtu::B256,
                messages: 60,
                depth: 24,
                lives: 6,
                lifetime: Duration::from_us(2000 + 700 * seed),
                gap: Duration::from_us(500),
                random_ports: false,
                fibre,
                ..setup
            };
            setup.nic.timeout = 17;
            let outcome = run(&setup);
            assert!(outcome.is_clean(), "seed {seed}: {}", show(&outcome));
        }
    }

    #[test]
    fn briefly_without_boxes() {
        briefly(Boxes::None);
    }

    #[test]
    fn briefly_through_whole_boxes() {
        briefly(Boxes::Whole);
    }

    /// Short lives whose first PSNs are near those of one of the two previous lives: their requests
    /// can look like that life's requests behind a loss, or like its repetitions. Among 100 QPs
    /// with random PSNs this happens to a few.
    fn nearby(boxes: Boxes) {
        let steps = [
            (1, 300),
            (1, 1500),
            (1, 4000),
            (1, -300),
            (2, 300),
            (2, 1500),
            (2, -300),
            (2, -50_000),
        ];
        for (seed, psn_step) in (1..).zip(steps) {
            let setup = Setup::new(seed, boxes);
            let rate = BitRate::from_gbps(1).expect("not zero");
            let fibre = LinkConfig::fibre_km(100, rate);
            let mut setup = Setup {
                qps: 40,
                messages: 60,
                size_max: 4 << 10,
                depth: 64,
                receives: 128,
                lives: 5,
                lifetime: Duration::from_us(9000 + 2000 * (seed % 4)),
                gap: Duration::from_us(500),
                stagger: Duration::from_us(500),
                random_ports: false,
                psn_step: Some(psn_step),
                rate,
                fibre,
                ..setup
            };
            setup.nic.timeout = 15;
            let outcome = run(&setup);
            assert!(outcome.is_clean(), "{psn_step:?}: {}", show(&outcome));
            if psn_step.0 > 1 {
                // A requester that has continued elsewhere is recognised before its timer expires.
                let is_in_time = Duration::of_ack_timeout(setup.nic.timeout)
                    .is_some_and(|it| outcome.ended < it);
                assert!(is_in_time, "{psn_step:?}: after {}", outcome.ended);
            }
        }
    }

    #[test]
    fn with_nearby_psns_without_boxes() {
        nearby(Boxes::None);
    }

    #[test]
    fn with_nearby_psns_through_accelerators() {
        nearby(Boxes::Both);
    }

    #[test]
    fn with_nearby_psns_through_whole_boxes() {
        nearby(Boxes::Whole);
    }

    /// The path is cut for longer than boxes wait, so that the first life fails. The second life is
    /// not affected.
    fn after_a_failure(boxes: Boxes) {
        let mut setup = reused(1, boxes, Duration::from_ms(10_000));
        setup.lives = 2;
        setup.lifetime = Duration::from_ms(30_000);
        let (at, lasts) = (Instant::ZERO + Duration::from_ms(20), Duration::from_ms(29_000));
        setup.fibre.cut = Some(Cut { at, lasts, every: None });
        let outcome = run(&setup);
        let is_first = |failure: &Failure| failure.life == 0;
        assert!(outcome.failures.iter().all(is_first), "{}", show(&outcome));
        assert!(!outcome.failures.is_empty(), "the path was not cut");
        assert!(
            outcome.violations.is_empty() && outcome.unfinished.is_empty(),
            "{}",
            show(&outcome)
        );
    }

    #[test]
    fn after_a_failure_without_boxes() {
        after_a_failure(Boxes::None);
    }

    #[test]
    fn after_a_failure_through_accelerators() {
        after_a_failure(Boxes::Both);
    }

    #[test]
    fn after_a_failure_through_whole_boxes() {
        after_a_failure(Boxes::Whole);
    }
}

/// A receiver that posts one receive at a time, late, gets in one round trip the messages that it
/// takes meanwhile: the end of its connection waits behind them, and the peer for that end.
#[test]
fn a_slow_receiver_far_away_is_done_before_its_peer_gives_up() {
    let setup = Setup::new(2624, Boxes::One);
    let rate = BitRate::from_gbps(100).expect("not zero");
    let mut fibre = LinkConfig::fibre_km(3000, rate);
    fibre.impairments.corruption = 1e-3;
    let nic = Nic {
        timeout: 15,
        rnr_timer: 1,
        reads: 4,
        ack_every: 16,
        window_messages: 128,
        ..Nic::default()
    };
    let outcome = run(&Setup {
        mode: Mode::Tail,
        connect: Connect::Manager,
        mix: Mix::SendsAndWrites,
        messages: 100,
        size_max: 64,
        depth: 64,
        receives: 1,
        receive_delay: Duration::from_us(700),
        rate,
        fibre,
        nic,
        lives: 2,
        lifetime: Duration::from_us(34_009),
        random_ports: false,
        ..setup
    });
    assert!(outcome.is_clean(), "{}", show(&outcome));
}

/// A path that becomes fifty times slower while a hundred QPs share it: its queue then delays
/// packets by more than the requesters' ACK timeout.
mod on_a_path_that_becomes_slow {
    use super::*;

    fn go_on(boxes: Boxes) {
        for seed in 1..3 {
            let setup = Setup::new(seed, boxes);
            let slow = BitRate::from_bps(200_000_000).expect("not zero");
            let mut fibre = LinkConfig::fibre_km(1000, setup.rate);
            let at = Instant::ZERO + Duration::from_ms(60);
            fibre.changes = vec![Change { at, lasts: None, to: Setting::Rate(slow) }];
            let outcome = run(&Setup {
                qps: 100,
                mix: Mix::Everything,
                messages: 400,
                size_max: 4 << 10,
                depth: 64,
                receives: 128,
                fibre,
                ..setup
            });
            assert!(outcome.is_clean(), "seed {seed}: {}", show(&outcome));
        }
    }

    #[test]
    fn without_boxes() {
        go_on(Boxes::None);
    }

    #[test]
    fn through_accelerators() {
        go_on(Boxes::Both);
    }

    #[test]
    fn through_whole_boxes() {
        go_on(Boxes::Whole);
    }
}

/// Draws everything that the harness can vary from the seed; small enough for a run of
/// milliseconds.
fn drawn(seed: u64) -> Setup {
    let mut rng = SplitMix64::new(seed ^ 0x6e65_7665_7277_6f72);
    let rng = &mut rng;
    let boxes = one_of(rng, &[Boxes::One, Boxes::Both, Boxes::Paired, Boxes::Whole]);
    let setup = Setup::new(seed, boxes);
    let rate = BitRate::from_gbps(one_of(rng, &[1, 10, 100])).expect("not zero");
    let (mtu, km) =
        (one_of(rng, &[Mtu::B256, Mtu::B1024, Mtu::B4096]), one_of(rng, &[1, 100, 1000, 3000]));
    let fibre = impaired(rng, LinkConfig::fibre_km(km, rate));
    let (qps, both_ways) = (one_of(rng, &[1, 2, 4, 8, 16, 32, 70, 130]), rng.chance(0.7));
    let size_max = one_of(rng, &[64, 2 << 10, 16 << 10, 100 << 10]);
    let packets_each = u64::from(size_max / mtu.bytes() / 2 + 2);
    let messages =
        (PACKETS / packets_each / (qps as u64 * (1 + u64::from(both_ways)))).clamp(3, 100);
    let gap = Duration::from_ms(one_of(rng, &[0, 0, 1, 20, 90]));
    let mut setup = Setup {
        connect: one_of(rng, &[Connect::Aside, Connect::Manager]),
        mode: one_of(rng, &[Mode::Early, Mode::Early, Mode::Far, Mode::Tail, Mode::Off]),
        qps,
        both_ways,
        mix: one_of(
            rng,
            &[
                Mix::Everything,
                Mix::Everything,
                Mix::WritesAndReads,
                Mix::SendsAndWrites,
                Mix::Writes,
            ],
        ),
        messages: messages as usize,
        size_max,
        depth: one_of(rng, &[1, 4, 16, 64]),
        receives: one_of(rng, &[1, 4, 16, 64]),
        receive_delay: Duration::from_us(one_of(rng, &[0, 0, 0, 20, 700])),
        mtu,
        rate,
        nic: nic(rng, fibre.delay.times(2)),
        fibre,
        lives: one_of(rng, &[1, 1, 1, 2, 3]),
        lifetime: Duration::from_us(500 + rng.below(60_000)) + gap,
        gap,
        stagger: Duration::from_us(one_of(rng, &[0, 0, 100, 5000])),
        random_ports: rng.chance(0.5),
        ..setup
    };
    let retries = one_of(rng, &[7, 7, 7, 5, 3]);
    let comes_together = setup.fibre.bursts.is_some() || setup.fibre.cut.is_some();
    setup.nic.retries = if comes_together { 7 } else { retries };
    let is_patient = |code: &u8| {
        let tries = u64::from(setup.nic.retries) + 1;
        Duration::of_ack_timeout(*code).is_some_and(|time| time.times(tries) >= PATIENCE_LEAST)
    };
    setup.nic.timeout = (setup.nic.timeout..20).find(is_patient).expect("it is not long");
    setup.nic.rnr_retries = one_of(rng, &[7, 7, 7, 6, 3]);
    if let Some(cut) = setup.fibre.cut.filter(|_| rng.chance(0.5)) {
        setup.fibre.changes = cuts_after(rng, cut);
    }
    setup.are_alike = rng.chance(0.1);
    setup
}

/// Further cuts, at irregular intervals: a requester that retries at the interval of the cuts loses
/// every retry, with boxes or without.
fn cuts_after(rng: &mut SplitMix64, cut: Cut) -> Vec<Change> {
    let mut ended = cut.at + cut.lasts;
    let mut next = |_| {
        let at = ended + cut.lasts.times(2 + rng.below(20));
        ended = at + cut.lasts;
        Change { at, lasts: Some(cut.lasts), to: Setting::Cut }
    };
    (0..CUTS_MAX).map(&mut next).collect()
}

const CUTS_MAX: u32 = 16;

/// Approximate number of packets with payload in a random run.
const PACKETS: u64 = 2000;

fn one_of<T: Copy>(rng: &mut SplitMix64, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

fn impaired(rng: &mut SplitMix64, fibre: LinkConfig) -> LinkConfig {
    let loss = one_of(rng, &[0.0, 0.0, 1e-4, 1e-3, 1e-2]);
    let bursts = (loss > 0.0 && rng.chance(0.3)).then_some(Bursts { frames: 2.0, loss: 0.75 });
    let late_by = Duration::from_us(1 + rng.below(1000));
    let impairments = Impairments {
        late: one_of(rng, &[0.0, 0.0, 0.0, 1e-3, 1e-2]),
        late_by,
        duplication: one_of(rng, &[0.0, 0.0, 0.0, 1e-2]),
        corruption: one_of(rng, &[0.0, 0.0, 0.0, 1e-3]),
    };
    let at = Instant::ZERO + Duration::from_us(rng.below(30_000));
    let cut = rng.chance(0.1).then(|| Cut {
        at,
        lasts: Duration::from_us(1 + rng.below(30_000)),
        every: None,
    });
    LinkConfig { loss, bursts, impairments, cut, ..fibre }
}

/// Shortest time in which a requester exhausts its retries. A box lets it run ahead of its
/// responder by the bytes taken in 32 ms, so that a keep-alive or a READ may wait as long behind
/// stored packets; without a box nothing is stored.
const PATIENCE_LEAST: Duration = Duration::from_ms(64);

/// Its local ACK timeout exceeds the round trip; otherwise it could not work over that distance.
fn nic(rng: &mut SplitMix64, round_trip: Duration) -> Nic {
    let is_enough =
        |code: &u8| Duration::of_ack_timeout(*code).is_some_and(|time| time > round_trip.times(3));
    let least = (10..20).find(is_enough).expect("round trips are short");
    Nic {
        timeout: one_of(rng, &[least, 14.max(least), 14.max(least), 18]),
        rnr_timer: one_of(rng, &[1, 12, 16]),
        reads: one_of(rng, &[1, 4, 16]),
        ack_every: one_of(rng, &[1, 16, 64]),
        ack_request_every: one_of(rng, &[4, 64, 1 << 20]),
        window_packets: one_of(rng, &[128, 1 << 23, 1 << 23]),
        window_messages: one_of(rng, &[8, 128, u32::MAX]),
        adaptive: rng.chance(0.1).then_some(round_trip.times(3) + Duration::from_ms(2)),
        report_credits: rng.chance(0.3),
        ..Nic::default()
    }
}

/// True where chance decides: the first host has ended the life of the QP, and its DREQ, repeated
/// after 4.3 s only, may be lost. Until then the second host sends to a QP that is gone.
fn may_be_unlucky(setup: &Setup, failure: &Failure) -> bool {
    let loses = setup.fibre.loss > 0.0
        || setup.fibre.impairments.corruption > 0.0
        || setup.fibre.cut.is_some();
    let is_last = failure.life + 1 == setup.lives;
    let is_unanswered = failure.end == End::Completion(Status::RetryExceeded);
    setup.connect == Connect::Manager && loses && failure.host == 1 && !is_last && is_unanswered
}

/// The failure of the run of `seed` with boxes, if the run without boxes has none.
fn worse(seed: u64) -> Option<String> {
    let setup = drawn(seed);
    let mut boxed = run(&setup);
    boxed.failures.retain(|failure| !may_be_unlucky(&setup, failure));
    if boxed.is_clean() {
        return None;
    }
    let plain = run(&Setup { boxes: Boxes::None, ..setup.clone() });
    let is_integrity = !boxed.violations.is_empty();
    (plain.is_clean() || is_integrity).then(|| format!("{setup:#?}\n{}", show(&boxed)))
}

fn runs(seeds: Range<u64>) {
    let outcome =
        |seed| std::panic::catch_unwind(|| worse(seed)).unwrap_or_else(|_| Some("panicked".into()));
    let bad = seeds.filter_map(|seed| Some((seed, outcome(seed)?)));
    let bad: Vec<(u64, String)> =
        bad.inspect(|(seed, _)| eprintln!("seed {seed} is worse")).collect();
    let Some((seed, why)) = bad.first() else { return };
    let all: Vec<u64> = bad.iter().map(|(seed, _)| *seed).collect();
    panic!(
        "worse than without boxes: {why}\nseeds {all:?}; repeat the first with\n    \
         LONGHAUL_SEEDS={seed}..{} cargo test -p longhaul-accel --test all \
         never_worse::those_of_some_seeds -- --ignored --nocapture",
        seed + 1
    );
}

#[test]
fn any_run() {
    runs(0..300);
}

#[test]
#[ignore = "nightly: ten thousand of `any_run`"]
fn any_run_of_many() {
    runs(300..10_300);
}

#[test]
#[ignore = "by hand: the seeds of `any_run` in LONGHAUL_SEEDS, as in 300..10300"]
fn those_of_some_seeds() {
    let seeds = std::env::var("LONGHAUL_SEEDS").unwrap_or_default();
    let bounds = seeds.split_once("..").map(|(first, end)| (first.parse(), end.parse()));
    if let Some((Ok(first), Ok(end))) = bounds {
        runs(first..end);
    }
}

/// QPs that send the same messages from the same PSN on: PSNs do not distinguish their ACKs, and
/// message counts do only if the LAN has lost none.
fn alike(seed: u64) -> Setup {
    let mut rng = SplitMix64::new(seed);
    let rng = &mut rng;
    let boxes = one_of(rng, &[Boxes::One, Boxes::Both, Boxes::Paired]);
    let setup = Setup::new(seed, boxes);
    let fibre = LinkConfig::fibre_km(one_of(rng, &[1, 100, 1000]), setup.rate);
    Setup {
        fibre: LinkConfig { loss: one_of(rng, &[0.0, 1e-3, 1e-2]), ..fibre },
        mix: one_of(rng, &[Mix::SendsAndWrites, Mix::SendsAndWrites, Mix::Everything]),
        qps: one_of(rng, &[4, 20]),
        messages: 60,
        size_max: one_of(rng, &[1 << 10, 64 << 10]),
        are_alike: true,
        stagger: Duration::from_us(one_of(rng, &[0, 1000, 20_000])),
        receives: one_of(rng, &[1, 4]),
        receive_delay: Duration::from_us(one_of(rng, &[0, 1000, 20_000, 200_000])),
        both_ways: rng.chance(0.3),
        depth: one_of(rng, &[4, 16]),
        ..setup
    }
}

fn alike_are_served(seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        let outcome = run(&alike(seed));
        assert!(outcome.is_clean(), "seed {seed}: {}", show(&outcome));
    }
}

/// The ACK of one QP was attributed to another, whose requester was then told of a loss: the owner
/// was being learnt again, and its trace lacked what it had sent before.
#[test]
fn a_flow_learnt_again_keeps_its_acks_from_others_alike() {
    alike_are_served([1551].into_iter());
}

/// A responder that takes a message each 1.2 s releases nothing to a requester that is far ahead.
/// Waiting for that takes none of its retries.
#[test]
fn a_requester_keeps_its_retries_while_its_receiver_takes_one_message_after_another() {
    for seed in [647, 10_002, 10_018] {
        let outcome = run(&Setup { seed, receive_delay: Duration::from_ms(1200), ..alike(647) });
        assert!(outcome.is_clean(), "seed {seed}: {}", show(&outcome));
    }
}

#[test]
fn queue_pairs_that_are_alike() {
    alike_are_served(0..100);
}

#[test]
#[ignore = "nightly: two thousand of `queue_pairs_that_are_alike`"]
fn queue_pairs_that_are_alike_many() {
    alike_are_served(100..2100);
}
