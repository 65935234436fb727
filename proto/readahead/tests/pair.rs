//! Both boxes between two unmodified RNICs: fetched data is right, whatever the hosts do.

mod sites;

use longhaul_accel::Mode;
use longhaul_readahead::{Config, Protocol, ReadAhead};
use longhaul_rnic::{Mtu, Status};
use longhaul_units::{Duration, Rng, SplitMix64};
use sites::program::{Programs, Work};
use sites::{Between, INITIATOR, Setup, TARGET};

const ONE: Work = Work { commands: 1, depth: 1, len: 32 << 10, bad_key_in: None, is_wild: false };

/// Round trips of 50 ms that the last of a few sequential commands takes.
fn round_trips(setup: &Setup) -> f64 {
    let mut programs = Programs::new(setup, Work { commands: 4, ..ONE });
    programs.run();
    let last = *programs.latencies.last().unwrap();
    last.as_secs_f64() / 0.05
}

fn off() -> [Config; 2] {
    [Config::default(), Config::default()]
}

#[test]
fn a_command_takes_one_round_trip_instead_of_two() {
    for between in [Between::Path, Between::Boxes(Mode::Early), Between::Boxes(Mode::Off)] {
        let without = round_trips(&Setup { between, read_ahead: off(), ..Setup::default() });
        let with = round_trips(&Setup { between, ..Setup::default() });
        println!("{between:?}: {without:.3} and {with:.3} round trips");
        assert!((2.0..2.02).contains(&without), "{between:?}: {without} round trips without");
        assert!((1.0..1.02).contains(&with), "{between:?}: {with} round trips with");
    }
}

#[test]
fn one_box_alone_changes_nothing() {
    for site in [INITIATOR, TARGET] {
        let mut read_ahead = off();
        read_ahead[site] = Config::of(&Protocol::ALL);
        let setup = Setup { read_ahead, ..Setup::default() };
        let mut programs = Programs::new(&setup, Work { commands: 4, ..ONE });
        programs.run();
        assert!(programs.sites.counters(site).renumbered == 0);
        assert_eq!(programs.sites.counters(INITIATOR).fetched, 0);
    }
}

#[test]
fn every_range_is_fetched_once_and_answered_once() {
    let work = Work { commands: 200, depth: 16, ..ONE };
    let mut programs = Programs::new(&Setup::default(), work);
    programs.run();
    let [near, far] = [INITIATOR, TARGET].map(|site| programs.sites.counters(site));
    // Only the first commands precede the agreement of the boxes.
    assert!(near.fetched >= 200 - 2 * 16, "{near:?}");
    assert_eq!(near.fetched, far.answered);
    assert_eq!(near.fetched_bytes, near.fetched * (32 << 10));
    assert_eq!(near.fetched_bytes, far.answered_bytes);
    assert_eq!((far.answered_again, far.answers_failed, far.discarded), (0, 0, 0));
    assert!(programs.sites.read_ahead[TARGET].borrow().held_bytes() > 0);
    programs.rest(Duration::from_ms(10_000));
    assert_eq!(
        programs.sites.read_ahead[TARGET].borrow().held_bytes(),
        0,
        "nothing is held for ever"
    );
}

#[test]
fn it_lasts_beyond_the_ranges_that_are_remembered() {
    let mut read_ahead = Setup::default().read_ahead;
    for config in &mut read_ahead {
        config.ranges_max = 16;
    }
    let setup = Setup { read_ahead, ..Setup::default() };
    let mut programs = Programs::new(&setup, Work { commands: 400, depth: 4, ..ONE });
    programs.run();
    let near = programs.sites.counters(INITIATOR);
    assert!(near.fetched >= 400 - 2 * 4, "{near:?}");
}

#[test]
fn no_read_of_a_deep_queue_overtakes_its_announcement() {
    const DEPTH: u64 = 120;
    let work = Work { commands: 5 * DEPTH, depth: DEPTH as usize, ..ONE };
    let mut programs = Programs::new(&Setup::default(), work);
    programs.run();
    let far = programs.sites.counters(TARGET);
    // But the first commands, which precede the agreement of the boxes.
    assert!(far.reads_passed <= DEPTH, "{far:?}");
    assert!(far.answered >= 4 * DEPTH, "{far:?}");
}

fn wild(setup: &Setup, commands: u64) -> Programs {
    let work = Work { commands, depth: 24, len: 24 << 10, is_wild: true, ..ONE };
    let mut programs = Programs::new(setup, work);
    programs.run();
    programs.check_constant();
    programs.rest(Duration::from_ms(10_000));
    assert_eq!(programs.sites.read_ahead[TARGET].borrow().held_bytes(), 0);
    programs
}

#[test]
fn targets_do_what_they_may() {
    for seed in 0..6 {
        let programs = wild(&Setup { seed, ..Setup::default() }, 300);
        let [near, far] = [INITIATOR, TARGET].map(|site| programs.sites.counters(site));
        println!("{near:?}\n{far:?}");
        assert!(far.answered > 50 && far.discarded > 5, "{far:?}");
        assert_eq!(near.fetches_refused + far.answers_failed + near.unmarked, 0);
    }
}

#[test]
fn lans_that_lose_packets_make_no_data_wrong() {
    for seed in 0..8 {
        let lan_loss = [[0.01, 0.0], [0.0, 0.01], [0.01, 0.01], [0.03, 0.003]][seed as usize % 4];
        let setup = Setup { seed, lan_loss, ..Setup::default() };
        let programs = wild(&setup, 200);
        let [near, far] = [INITIATOR, TARGET].map(|site| programs.sites.counters(site));
        println!("{near:?}\n{far:?}");
        assert!(far.answered > 20, "{far:?}");
    }
}

#[test]
fn whole_boxes_carry_it_whatever_the_path_loses() {
    let modes = [Mode::Early, Mode::Far, Mode::Tail, Mode::Off];
    for seed in 0..8 {
        let between = Between::Boxes(modes[seed as usize % 4]);
        let wan_loss = if seed < 4 { 0.0 } else { 0.01 };
        let lan_loss = if seed % 2 == 0 { [0.0; 2] } else { [0.005; 2] };
        let setup = Setup { seed, between, wan_loss, lan_loss, ..Setup::default() };
        let programs = wild(&setup, 200);
        let [near, far] = [INITIATOR, TARGET].map(|site| programs.sites.counters(site));
        println!("{between:?} {near:?}\n{far:?}");
        assert!(far.answered > 20, "{far:?}");
    }
}

#[test]
fn an_initiator_that_serves_two_reads_at_once_is_never_asked_for_more() {
    for seed in 0..4 {
        let setup = Setup { seed, reads_max: 2, ..Setup::default() };
        let programs = wild(&setup, 150);
        assert!(programs.sites.counters(TARGET).answered > 10);
    }
}

/// Commands answered before a box loses its memory.
const BEFORE: u64 = 60;

#[test]
fn a_box_that_loses_its_memory_ends_the_connection() {
    for between in [Between::Path, Between::Boxes(Mode::Early), Between::Boxes(Mode::Off)] {
        for site in [INITIATOR, TARGET] {
            let setup = Setup { between, ..Setup::default() };
            let work =
                Work { commands: 4 * BEFORE, depth: 24, len: 24 << 10, is_wild: true, ..ONE };
            let mut programs = Programs::new(&setup, work);
            assert_eq!(programs.run_to(BEFORE), Ok(()));
            let config = programs.sites.read_ahead[site].borrow().config().clone();
            *programs.sites.read_ahead[site].borrow_mut() = ReadAhead::new(config).unwrap();
            let outcome = programs.run_to(4 * BEFORE);
            let told = [Status::RetryExceeded, Status::RemoteOperation];
            assert!(
                matches!(outcome, Err((TARGET, status)) if told.contains(&status)),
                "{between:?} {site}: {outcome:?}"
            );
        }
    }
}

#[test]
fn a_connection_that_fetched_nothing_yet_ends_too_rather_than_being_guessed_about() {
    let mut programs = Programs::new(&Setup::default(), Work { commands: 2, ..ONE });
    assert_eq!(programs.run_to(1), Ok(()));
    let config = programs.sites.read_ahead[INITIATOR].borrow().config().clone();
    *programs.sites.read_ahead[INITIATOR].borrow_mut() = ReadAhead::new(config).unwrap();
    assert_eq!(programs.run_to(2), Err((TARGET, Status::RetryExceeded)));
}

#[test]
fn a_fetch_that_is_refused_ends_the_connection_and_is_counted() {
    let work = Work { commands: 40, depth: 4, bad_key_in: Some(20), ..ONE };
    let mut without = Programs::new(&Setup { read_ahead: off(), ..Setup::default() }, work);
    without.run();
    let mut with = Programs::new(&Setup::default(), work);
    let outcome = with.run_to(work.commands);
    // The QP is in error at its NIC, as after such a READ by the target.
    assert_eq!(outcome, Err((INITIATOR, Status::WrFlush)));
    with.rest(Duration::from_ms(10_000));
    assert_eq!(with.sites.counters(INITIATOR).fetches_refused, 1);
    let mut told = with.completions(TARGET).into_iter().map(|completion| completion.status);
    let told = told.find(|status| *status != Status::Success);
    assert_eq!(
        told,
        Some(Status::RetryExceeded),
        "the target is refused nothing that it did not ask for"
    );
}

#[test]
fn a_box_that_drains_fetches_nothing_further() {
    let mut programs = Programs::new(&Setup::default(), Work { commands: 80, depth: 4, ..ONE });
    assert_eq!(programs.run_to(20), Ok(()));
    programs.sites.read_ahead[INITIATOR].borrow_mut().set_draining(true);
    let before = programs.sites.counters(INITIATOR).fetched;
    assert_eq!(programs.run_to(80), Ok(()));
    assert!(programs.sites.counters(INITIATOR).fetched <= before + 4, "but what was in flight");
}

#[test]
fn a_lost_fetch_is_sent_again_in_its_place_as_soon_as_the_nic_misses_it() {
    let slow = Config { retry_after: Duration::from_ms(30_000), ..Config::of(&Protocol::ALL) };
    let setup = Setup { read_ahead: [slow.clone(), slow], ..Setup::default() };
    let mut programs = Programs::new(&setup, Work { commands: 60, depth: 8, ..ONE });
    assert_eq!(programs.run_to(20), Ok(()));
    let start = programs.sites.now;
    programs.sites.lost_reads.set(3);
    assert_eq!(programs.run_to(60), Ok(()));
    let took = programs.sites.now.since(start);
    assert!(
        programs.sites.counters(INITIATOR).fetches_repeated >= 3
            && programs.sites.lost_reads.get() == 0
    );
    assert!(took < Duration::from_ms(2000), "{took}: not by the timer");
}

/// Random variations by seed.
fn any(seed: u64) -> Setup {
    let mut rng = SplitMix64::new(seed);
    let modes = [Mode::Early, Mode::Far, Mode::Tail, Mode::Off];
    let boxes = Between::Boxes(modes[rng.below(4) as usize]);
    let mut one_of = |of: [f64; 4]| of[rng.below(4) as usize];
    let lan_loss = [one_of([0.0, 0.0, 0.003, 0.02]), one_of([0.0, 0.0, 0.003, 0.02])];
    let wan_loss = one_of([0.0, 0.0, 0.002, 0.02]);
    let between = if rng.below(3) == 0 { Between::Path } else { boxes };
    let wan_loss = if between == Between::Path { 0.0 } else { wan_loss };
    let config = Config {
        fetches_max: 1 + rng.below(16) as u8,
        wanted_max: 4 + rng.below(60) as u16,
        held_max: 4 + rng.below(60) as u16,
        waiting_max: 1 + rng.below(64) as u16,
        ranges_max: 16 + rng.below(500) as u32,
        held_bytes_max: (64 << 10) + rng.below(2 << 20),
        range_bytes_max: 64 << 10,
        ..Config::of(&Protocol::ALL)
    };
    Setup {
        between,
        wan_loss,
        lan_loss,
        seed,
        delay: Duration::from_us(50 + rng.below(30_000)),
        mtu: [Mtu::B512, Mtu::B1024, Mtu::B4096][rng.below(3) as usize],
        reads_max: 2 + rng.below(15) as u8,
        first_psns: [rng.next_u64() as u32, rng.next_u64() as u32],
        read_ahead: [config.clone(), config],
    }
}

#[test]
fn whatever_the_circumstances() {
    for seed in 0..24 {
        println!("seed {seed}: {:?}", any(seed));
        wild(&any(seed), 150);
    }
}

/// The target repeats READs while their responses are in flight, and accepts those; with these
/// seeds the boxes could wait for the rest beyond its NIC's patience.
#[test]
fn boxes_do_not_wait_for_answers_that_the_target_has() {
    for seed in [1040, 1095, 1099] {
        let between = Between::Boxes(Mode::Tail);
        wild(&Setup { between, lan_loss: [0.02, 0.0], ..any(seed) }, 150);
    }
}

#[test]
#[ignore = "minutes"]
fn whatever_the_circumstances_at_length() {
    let first =
        std::env::var("LONGHAUL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1000);
    for seed in first..first + 400 {
        println!("LONGHAUL_SEED={seed}: {:?}", any(seed));
        wild(&any(seed), 300);
    }
}
