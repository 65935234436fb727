//! Replayed datagrams, unchanged or in another context.

use crate::attacker::{Crossing, Power, Shared, shared};
use crate::forge::AT;
use crate::stage::{BOTH, Keys, Stage, boxes, setup};
use longhaul_units::{Duration, Rng, SplitMix64};

/// An attacker that reads, and the datagrams that it read last.
fn reader(most: usize) -> (Power, Shared<Vec<Crossing>>) {
    let read = shared(Vec::new());
    let keeps = read.clone();
    let power = Power::Read(Box::new(move |_, crossing: &Crossing| {
        let mut kept = keeps.borrow_mut();
        if kept.len() < most {
            kept.push(crossing.clone());
        }
    }));
    (power, read)
}

fn assert_named(stage: &Stage, keys: Keys) {
    for site in [0, 1] {
        let dropped = match keys {
            Keys::With => stage.seal_dropped(site, longhaul_seal::DropReason::Replayed),
            Keys::Without => stage.transport_dropped(site, longhaul_wan::DropReason::Replayed),
        };
        assert!(dropped > 500, "{keys:?}, site {site}: {dropped}");
    }
}

#[test]
fn what_is_said_twice_and_thrice_comes_once() {
    for keys in BOTH {
        let (power, read) = reader(usize::MAX);
        let mut stage = Stage::with(keys, power);
        let outcome = stage.attacked(|stage| {
            let said = std::mem::take(&mut *read.borrow_mut());
            for crossing in said.iter().chain(&said) {
                stage.send(crossing.toward, crossing.bytes.clone());
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        assert_named(&stage, keys);
    }
}

#[test]
fn what_was_said_long_ago_changes_nothing() {
    for keys in BOTH {
        let (power, read) = reader(4000);
        let mut stage = Stage::with(keys, power);
        let mut rng = SplitMix64::new(7);
        let outcome = stage.attacked(|stage| {
            for _ in 0..40 {
                let said = read.borrow();
                let crossing = said[rng.below(said.len() as u64) as usize].clone();
                drop(said);
                stage.send(crossing.toward, crossing.bytes);
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        assert_named(&stage, keys);
    }
}

/// QPs are reset and start again; the attacker replays their former lives.
#[test]
fn what_a_connection_said_before_it_began_anew_changes_nothing() {
    for keys in BOTH {
        let (power, read) = reader(20_000);
        let mut setup = setup(3, boxes(keys));
        setup.lives = 3;
        setup.messages = 80;
        (setup.lifetime, setup.gap) = (Duration::from_ms(400), Duration::from_ms(5));
        let mut stage = Stage::new(&setup, power);
        let mut next = 0;
        let outcome = stage.attacked(|stage| {
            for _ in 0..40 {
                let said = read.borrow();
                next = (next + 1) % said.len();
                let crossing = said[next].clone();
                drop(said);
                stage.send(crossing.toward, crossing.bytes);
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        assert_named(&stage, keys);
    }
}

/// The headers of one datagram before the body of another of equal length.
fn spliced(rng: &mut SplitMix64, first: &Crossing, second: &Crossing) -> Option<Crossing> {
    // Headers up to UDP, or the boxes' own headers too.
    let at = [AT, AT + 8, AT + 16, AT + 24, AT + 36][rng.below(5) as usize];
    let is_alike = first.bytes.len() == second.bytes.len() && first.bytes.len() > at;
    let bytes = [first.bytes.get(..at)?, second.bytes.get(at..)?].concat();
    let is_new = bytes != first.bytes && bytes != second.bytes;
    (is_alike && is_new).then(|| Crossing::new(first.toward, bytes))
}

/// Datagrams refused by a key or check, and as replays.
fn refused(stage: &Stage, keys: Keys, site: usize) -> [u64; 2] {
    match keys {
        Keys::With => {
            use longhaul_seal::DropReason::{Replayed, Unauthenticated};
            [Unauthenticated, Replayed].map(|reason| stage.seal_dropped(site, reason))
        }
        Keys::Without => {
            use longhaul_wan::DropReason::{Corrupted, Replayed};
            [Corrupted, Replayed].map(|reason| stage.transport_dropped(site, reason))
        }
    }
}

#[test]
fn what_a_reader_cuts_from_one_stream_does_not_fit_another() {
    for keys in BOTH {
        let (power, read) = reader(2000);
        let mut stage = Stage::with(keys, power);
        let mut rng = SplitMix64::new(11);
        let mut sent = [0_u64; 2];
        let outcome = stage.attacked(|stage| {
            let said = read.borrow().clone();
            for _ in 0..100 {
                let [first, second] = [0, 1].map(|_| &said[rng.below(said.len() as u64) as usize]);
                let Some(mut crossing) = spliced(&mut rng, first, second) else { continue };
                if rng.chance(0.1) {
                    crossing.toward = 1 - crossing.toward;
                }
                sent[crossing.toward] += 1;
                stage.send(crossing.toward, crossing.bytes);
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        for site in [0, 1] {
            let refused: u64 = refused(&stage, keys, site).into_iter().sum();
            assert!(
                refused > sent[site] / 2 && sent[site] > 100,
                "{keys:?}: {refused} of {sent:?}"
            );
        }
    }
}

#[test]
fn what_a_writer_exchanges_between_datagrams_fits_neither() {
    for keys in BOTH {
        let (mut rng, mut seen) = (SplitMix64::new(12), 0_u64);
        let mut last: [Option<Crossing>; 2] = [None, None];
        let exchanged = shared([0_u64; 2]);
        let count = exchanged.clone();
        // Every tenth continues with the body of the previous one in its direction.
        let power = Power::Write(Box::new(move |_, crossing| {
            seen += 1;
            let toward = crossing.toward;
            let before = last[toward].replace(crossing.clone());
            let other = before.filter(|_| seen > 2000 && seen.is_multiple_of(10));
            let other = other.and_then(|other| spliced(&mut rng, &crossing, &other));
            count.borrow_mut()[toward] += u64::from(other.is_some());
            vec![other.unwrap_or(crossing)]
        }));
        let mut stage = Stage::with(keys, power);
        let outcome = stage.attacked(|_| {});
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        let exchanged = exchanged.borrow();
        for site in [0, 1] {
            let [refused, _] = refused(&stage, keys, site);
            assert!(exchanged[site] > 20, "{exchanged:?}");
            assert!(refused > exchanged[site] / 2, "{keys:?}: {refused} of {exchanged:?}");
        }
    }
}
