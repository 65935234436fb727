//! Random decisions follow their distributions: means within 1 %, and distributions by
//! goodness-of-fit tests that reject a right one with a probability of 1 in 1000.
//!
//! Seeds are fixed, so that each test is deterministic.

use crate::frames::{Run, Sample, WRITE, ruled};
use longhaul_link::{Bursts, DropReason, Impairments, LinkConfig, Wire};
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Duration, Instant};

const SEEDS: [u64; 3] = [1, 77, 0x00c0_ffee];
/// Standard normal quantile of 0.999.
const Z: f64 = 3.09;

fn is_near(observed: f64, expected: f64, what: &str) {
    assert!((observed / expected - 1.0).abs() < 0.01, "{what}: {observed}, not {expected}");
}

/// Pearson's test of observed counts against expected ones, each at least 5.
fn fits(observed: &[u64], expected: &[f64], what: &str) {
    let statistic: f64 =
        observed.iter().zip(expected).map(|(o, e)| (*o as f64 - e).powi(2) / e).sum();
    assert!(expected.iter().all(|expected| *expected >= 5.0), "{what}: {expected:?}");
    // Wilson and Hilferty's approximation of the quantile of chi-square.
    let freedom = (observed.len() - 1) as f64;
    let ninth = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - ninth + Z * ninth.sqrt()).powi(3);
    assert!(
        statistic < limit,
        "{what}: chi-square {statistic:.1} of at most {limit:.1}: {observed:?}"
    );
}

/// Tests the counts of lengths 1, 2, ... against a geometric distribution with this mean; lengths
/// with fewer than 20 expected are combined.
fn is_geometric(lengths: &[u64], mean: f64, what: &str) {
    let (stay, all) = (1.0 - 1.0 / mean, lengths.len() as f64);
    let mut expected = Vec::new();
    let mut left = all;
    while left / mean >= 20.0 {
        expected.push(left / mean);
        left *= stay;
    }
    let mut observed = vec![0; expected.len() + 1];
    for length in lengths {
        observed[(*length as usize - 1).min(expected.len())] += 1;
    }
    expected.push(left);
    if expected[expected.len() - 1] < 5.0 {
        let (last, observed_last) = (expected.pop().unwrap(), observed.pop().unwrap());
        *expected.last_mut().unwrap() += last;
        *observed.last_mut().unwrap() += observed_last;
    }
    fits(&observed, &expected, what);
}

/// Lengths of the runs of delivered frames and of lost frames, over `frames` frames on a link with
/// this loss.
fn runs(config: &LinkConfig, frames: u64) -> (Vec<u64>, Vec<u64>) {
    let mut wire = Wire::new(config, 0, config.seed).unwrap();
    let frame = Frame { head: &[0; 54], payload: Payload::EMPTY, trailer: Trailer::None };
    let (mut delivered, mut lost, mut run, mut was_lost) = (Vec::new(), Vec::new(), 0, false);
    for _ in 0..frames {
        let is_lost = wire.enter(Instant::ZERO, &frame).is_err();
        if is_lost != was_lost {
            if was_lost { &mut lost } else { &mut delivered }.push(run);
            (run, was_lost) = (0, is_lost);
        }
        run += 1;
    }
    (delivered, lost)
}

mod loss {
    use super::*;

    #[test]
    fn single_losses_have_their_mean_and_are_independent() {
        for (loss, seed) in [(0.5, SEEDS[0]), (0.1, SEEDS[1]), (0.02, SEEDS[2])] {
            let config = LinkConfig { loss, seed, ..LinkConfig::default() };
            let (delivered, lost) = runs(&config, (200_000.0 / loss) as u64);
            let count = lost.iter().sum::<u64>() as f64;
            is_near(count / (200_000.0 / loss), loss, "loss");
            // Distances between independent hits are geometric.
            is_geometric(&delivered[1..], 1.0 / loss, &format!("distances at {loss}"));
            is_geometric(&lost, 1.0 / (1.0 - loss), &format!("runs of losses at {loss}"));
        }
    }

    /// In trains, which skip delivered frames, so that rare losses take no time.
    #[test]
    fn rare_losses_have_their_mean() {
        for (loss, seed) in [(1e-3, SEEDS[0]), (1e-5, SEEDS[1]), (1e-7, SEEDS[2])] {
            let mut wire =
                Wire::new(&LinkConfig { loss, ..LinkConfig::default() }, 0, seed).unwrap();
            let frame = Frame { head: &[0; 54], payload: Payload::EMPTY, trailer: Trailer::None };
            let frames = (100_000.0 / loss) as u64;
            wire.enter_train(Instant::ZERO, &frame, frames, |_, _, _| {});
            let lost = wire.counters().drops.get(DropReason::Loss);
            is_near(lost as f64 / frames as f64, loss, "loss");
        }
    }

    #[test]
    fn bursts_have_their_mean_and_geometric_lengths_and_distances() {
        for (loss, frames, seed) in
            [(0.05, 8.0, SEEDS[0]), (0.2, 3.0, SEEDS[1]), (0.1, 25.0, SEEDS[2])]
        {
            let bursts = Some(Bursts { frames, loss: 1.0 });
            let config = LinkConfig { loss, bursts, seed, ..LinkConfig::default() };
            // Means of bursts vary more: as many bursts are needed as losses above.
            let count = (200_000.0 * frames / loss) as u64;
            let (delivered, lost) = runs(&config, count);
            is_near(lost.iter().sum::<u64>() as f64 / count as f64, loss, "loss in bursts");
            is_near(lost.iter().sum::<u64>() as f64 / lost.len() as f64, frames, "mean length");
            is_geometric(&lost, frames, &format!("lengths of bursts of {frames}"));
            let between = frames * (1.0 - loss) / loss;
            is_geometric(
                &delivered[1..],
                between,
                &format!("distances between bursts of {frames}"),
            );
        }
    }

    #[test]
    fn within_a_burst_that_spares_some_the_mean_holds_too() {
        let bursts = Some(Bursts { frames: 10.0, loss: 0.4 });
        let config = LinkConfig { loss: 0.05, bursts, seed: SEEDS[0], ..LinkConfig::default() };
        let (_, lost) = runs(&config, 40_000_000);
        is_near(lost.iter().sum::<u64>() as f64 / 4e7, 0.05, "loss");
        // A run continues if the burst does and the next frame is lost.
        is_geometric(&lost, 1.0 / (1.0 - 0.9 * 0.4), "runs of losses");
    }
}

mod jitter {
    use super::*;

    const FRAMES: usize = 200_000;

    /// Additional delay of each frame due to the rule, in picoseconds; frames are far apart.
    fn delays(rule: &str, seed: u64) -> Vec<u64> {
        let mut run = Run::new(&LinkConfig { seed, ..ruled(&[rule]) }, 0);
        let delay = |run: &mut Run| {
            run.wait(Duration::from_ms(1));
            run.send(&WRITE).unwrap().due.since(run.now).as_ps()
        };
        (0..FRAMES).map(|_| delay(&mut run)).collect()
    }

    #[test]
    fn a_range_of_times_is_uniform() {
        for (action, seed) in [("delay", SEEDS[0]), ("reorder", SEEDS[1])] {
            let (least, most) = (50_000_000, 150_000_000);
            let mut delays = delays(&format!("any: {action} 50-150us"), seed);
            let mean = delays.iter().sum::<u64>() as f64 / FRAMES as f64;
            is_near(mean, 100e6, "mean");
            assert!(delays.iter().all(|delay| (least..=most).contains(delay)));
            let mut bins = [0; 50];
            for delay in &delays {
                bins[((delay - least) * 50 / (most - least + 1)) as usize] += 1;
            }
            fits(&bins, &[FRAMES as f64 / 50.0; 50], action);
            // Kolmogorov-Smirnov: the largest distance between the distributions.
            delays.sort_unstable();
            let distance = delays.iter().zip(0..).map(|(delay, rank)| {
                let expected = (delay - least) as f64 / (most - least) as f64;
                (expected - rank as f64 / FRAMES as f64).abs()
            });
            let distance = distance.fold(0.0, f64::max) * (FRAMES as f64).sqrt();
            assert!(distance < 1.95, "{action}: {distance}");
        }
    }

    #[test]
    fn one_frames_delay_says_nothing_of_the_next() {
        let delays = delays("any: delay 0-100us", SEEDS[2]);
        let mut bins = [0; 100];
        for pair in delays.windows(2).step_by(2) {
            let [first, next] = [pair[0], pair[1]].map(|delay| delay * 10 / 100_000_001);
            bins[(first * 10 + next) as usize] += 1;
        }
        fits(&bins, &[FRAMES as f64 / 200.0; 100], "pairs of delays");
    }
}

mod rates {
    use super::*;

    const FRAMES: u64 = 1_000_000;

    /// Within six standard deviations, which chance exceeds once in 10^9.
    fn is_likely(count: u64, probability: f64, what: &str) {
        let (mean, deviation) = (
            FRAMES as f64 * probability,
            (FRAMES as f64 * probability * (1.0 - probability)).sqrt(),
        );
        assert!((count as f64 - mean).abs() <= 6.0 * deviation, "{what}: {count} at {probability}");
    }

    #[test]
    fn lateness_duplication_and_corruption_are_as_frequent_as_they_are_to_be() {
        for (seed, [late, duplication, corruption]) in
            SEEDS.into_iter().zip([[0.2, 0.03, 1e-3], [1e-4, 0.5, 0.01], [1.0, 1e-5, 0.3]])
        {
            let impairments =
                Impairments { late, late_by: Duration::from_ns(5), duplication, corruption };
            let mut run = Run::new(&LinkConfig { impairments, seed, ..LinkConfig::default() }, 0);
            let frame = Frame { head: &[0; 54], payload: Payload::EMPTY, trailer: Trailer::None };
            let mut both = 0;
            for _ in 0..FRAMES {
                let arrival = run.send_frame(&frame).unwrap();
                both += u64::from(arrival.is_duplicated && arrival.corrupted_bit.is_some());
            }
            let counters = run.wire.counters();
            is_likely(counters.late_frames, late, "late");
            is_likely(counters.duplicated_frames, duplication, "twice");
            is_likely(counters.corrupted_frames, corruption, "corrupted");
            is_likely(both, duplication * corruption, "twice and corrupted");
        }
    }

    #[test]
    fn corrupted_bits_are_spread_over_the_frame() {
        let impairments = Impairments { corruption: 1.0, ..Impairments::default() };
        let mut run = Run::new(&LinkConfig { impairments, ..LinkConfig::default() }, 0);
        let frame = Frame { head: &[0; 28], payload: Payload::EMPTY, trailer: Trailer::None };
        let mut bits = [0; 128];
        for _ in 0..200_000 {
            bits[run.send_frame(&frame).unwrap().corrupted_bit.unwrap() as usize - 96] += 1;
        }
        fits(&bits, &[200_000.0 / 128.0; 128], "bits");
    }

    #[test]
    fn rules_strike_as_often_as_they_are_to() {
        for (part, seed) in [(0.25, SEEDS[0]), (0.01, SEEDS[1]), (1e-4, SEEDS[2])] {
            let text = format!("write: duplicate {part}");
            let mut run = Run::new(&LinkConfig { seed, ..ruled(&[&text]) }, 0);
            let head = WRITE.head();
            let trailer = Trailer::Sealed { pad_len: 0 };
            let payload = Payload::Synthetic { len: WRITE.payload_len };
            let frame = Frame { head: head.bytes(), payload, trailer };
            for _ in 0..FRAMES {
                run.send_frame(&frame).unwrap();
            }
            is_likely(run.counted(0).1, part, "struck");
        }
    }

    #[test]
    fn a_rule_in_bursts_strikes_runs_of_the_frames_that_it_selects() {
        let mut run = Run::with_rules(&["qpn 0x17: lose 5% bursts 6"]);
        let other = Sample { qpn: 0x18, ..WRITE };
        let (mut lost, mut length) = (Vec::new(), 0);
        for _ in 0..FRAMES {
            assert!(run.send(&other).is_ok());
            if run.send(&WRITE).is_err() {
                length += 1;
            } else if length > 0 {
                lost.push(std::mem::take(&mut length));
            }
        }
        is_geometric(&lost, 6.0, "runs of struck frames");
    }
}
