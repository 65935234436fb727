//! Scripted changes in virtual time.

use crate::frames::{Run, Sample, WRITE};
use longhaul_cc::wire_bytes;
use longhaul_link::{Bursts, Change, DropReason, Link, LinkConfig, LinkError, Setting};
use longhaul_units::{BitRate, Duration, Instant};
use proptest::prelude::*;

fn change(text: &str) -> Change {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn with_changes(changes: &[&str], config: LinkConfig) -> Run {
    Run::new(
        &LinkConfig { changes: changes.iter().map(|text| change(text)).collect(), ..config },
        0,
    )
}

fn ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

/// Sends one frame per millisecond from 0 on. Returns the delay or drop of each.
fn each_ms(run: &mut Run, until: u64) -> Vec<Result<Duration, DropReason>> {
    let one = |at| {
        run.now = ms(at);
        run.send(&WRITE).map(|arrival| arrival.due.since(run.now))
    };
    (0..until).map(one).collect()
}

mod cut {
    use super::*;

    fn lost(changes: &[&str]) -> Vec<u64> {
        let outcomes = each_ms(&mut with_changes(changes, LinkConfig::default()), 100);
        let cut = |at: &u64| outcomes[*at as usize] == Err(DropReason::Cut);
        (0..100).filter(cut).collect()
    }

    #[test]
    fn loses_what_is_sent_in_between() {
        assert_eq!(lost(&["10ms cut 5ms"]), [10, 11, 12, 13, 14]);
        assert_eq!(lost(&["10ms-12ms cut", "97ms cut"]), [10, 11, 97, 98, 99]);
        assert_eq!(lost(&["10ms cut 2ms", "11ms cut 3ms"]), [10, 11, 12, 13]);
    }
}

mod loss {
    use super::*;

    #[test]
    fn holds_from_one_moment_to_another() {
        let mut run = with_changes(
            &["10ms-20ms loss 1", "30ms loss 100%", "40ms loss 0"],
            LinkConfig::default(),
        );
        for (at, outcome) in each_ms(&mut run, 60).into_iter().enumerate() {
            let is_lost = (10..20).contains(&at) || (30..40).contains(&at);
            assert_eq!(outcome == Err(DropReason::Loss), is_lost, "{at} ms");
        }
    }

    #[test]
    fn what_began_last_decides_and_what_was_before_comes_back() {
        let config = LinkConfig { loss: 1.0, ..LinkConfig::default() };
        let mut run = with_changes(&["10ms-40ms loss 0", "20ms-30ms loss 1"], config);
        for (at, outcome) in each_ms(&mut run, 50).into_iter().enumerate() {
            let is_spared = (10..20).contains(&at) || (30..40).contains(&at);
            assert_eq!(outcome.is_ok(), is_spared, "{at} ms");
        }
    }

    #[test]
    fn changes_of_something_else_leave_the_losses_as_they_are() {
        let config = LinkConfig { loss: 0.3, seed: 9, ..LinkConfig::default() };
        let survivors = |changes: &[&str]| {
            let outcomes = each_ms(&mut with_changes(changes, config.clone()), 1000);
            outcomes.iter().map(Result::is_ok).collect::<Vec<bool>>()
        };
        assert_eq!(survivors(&[]), survivors(&["100ms delay 3us", "200ms-300ms delay 1us"]));
        let drawn = survivors(&["500ms loss 0.31"]);
        assert_eq!(drawn, survivors(&["500ms loss 0.31"]), "the same each time");
        assert_eq!(drawn[..500], survivors(&[])[..500]);
        assert_ne!(drawn[500..], survivors(&[])[500..]);
    }
}

mod delay {
    use super::*;

    #[test]
    fn no_frame_overtakes_another() {
        let config = LinkConfig { delay: Duration::from_ms(2), ..LinkConfig::default() };
        let delays =
            each_ms(&mut with_changes(&["10ms delay 6ms", "20ms distance 200km"], config), 30);
        let delay = |at: usize| delays[at].unwrap().as_ps() / Duration::from_ms(1).as_ps();
        assert_eq!([0, 9, 10, 19].map(delay), [2, 2, 6, 6]);
        // The frame of 19 ms arrives at 25: those behind it wait until then.
        assert_eq!([20, 21, 22, 23, 24, 25, 29].map(delay), [5, 4, 3, 2, 1, 1, 1]);
    }

    #[test]
    fn memory_is_for_the_longest_and_the_highest_rate() {
        let fibre = |delay_ms, gbps| {
            let rate = BitRate::from_gbps(gbps);
            LinkConfig { delay: Duration::from_ms(delay_ms), rate, ..LinkConfig::default() }
        };
        let changes =
            ["1s delay 30ms", "2s rate 2G", "3s delay 1ms", "4s rate 1M"].map(change).to_vec();
        let changing = LinkConfig { changes, ..fibre(1, 1) };
        assert_eq!(changing.memory_bytes_needed(), fibre(30, 2).memory_bytes_needed());
        let refused = Link::new(LinkConfig { memory_bytes_max: 64 << 20, ..changing });
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains("delay of 30 ms is too long"), "{refused}");
        let refused = refused.contains("give at least") && !refused.contains('\n');
        assert!(refused, "with the cure, in a line");
    }
}

mod rate {
    use super::*;

    const LEN: u64 = 1226;

    fn frame() -> Sample {
        Sample { payload_len: LEN as usize - 58, ..WRITE }
    }

    #[test]
    fn holds_for_what_comes_from_then_on_behind_what_came_before() {
        assert_eq!(wire_bytes(LEN as usize), 1250);
        // A frame takes 10 µs at 1 Gbit/s and 1 µs at 10 Gbit/s.
        let config = LinkConfig { rate: BitRate::from_gbps(1), ..LinkConfig::default() };
        let mut run = with_changes(&["15us rate 10G", "100us-200us rate 100M"], config);
        let mut due = |at_us: u64| {
            run.now = Instant::ZERO + Duration::from_us(at_us);
            run.send(&frame()).unwrap().due.as_ns() / 1000
        };
        assert_eq!([0, 0, 0].map(&mut due), [10, 20, 30]);
        assert_eq!([15, 15, 50].map(&mut due), [31, 32, 51]);
        assert_eq!([100, 199, 201].map(&mut due), [200, 300, 301]);
    }

    #[test]
    fn the_queue_is_as_long_in_bytes_as_before() {
        let config = LinkConfig {
            rate: BitRate::from_gbps(1),
            queue_bytes: 12_500,
            ..LinkConfig::default()
        };
        let mut run = with_changes(&["10ms rate 10M"], config);
        for at in [0, 20] {
            run.now = ms(at);
            let taken = (0..30).filter(|_| run.send(&frame()).is_ok()).count();
            assert_eq!(taken, 10, "{at} ms");
        }
    }
}

mod text {
    use super::*;

    #[test]
    fn a_change_is_written_as_it_is_read() {
        for (text, written) in [
            ("10s cut 50ms", "10s-10.05s cut"),
            ("10s cut", "10s cut"),
            ("5s-20s loss 0.1%", "5s-20s loss 0.001"),
            ("5-20s  loss 1e-3", "5s-20s loss 0.001"),
            ("30s rate 1G", "30s rate 1G"),
            ("30s rate 2.5Gbit/s", "30s rate 2500M"),
            ("60s delay 20ms", "60s delay 20ms"),
            ("0-1us distance 1000km", "0ns-1us delay 5ms"),
        ] {
            assert_eq!(change(text).to_string(), written);
            assert_eq!(change(written), change(text));
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, place, part) in [
            ("", 1, "10s cut 50ms"),
            ("soon cut", 1, "not a time"),
            ("10 cut", 1, "not a time"),
            ("10s", 4, "10s cut 50ms"),
            ("20s-10s cut", 1, "ends before"),
            ("10s-20s cut 5ms", 13, "behind 'cut'"),
            ("10s cut 0s", 9, "behind 'cut'"),
            ("10s loss", 9, "A probability"),
            ("10s loss 2", 10, "a probability"),
            ("10s rate fast", 10, "which rate"),
            ("10s delay far", 11, "how long"),
            ("10s distance 5", 14, "needs its unit"),
            ("10s jitter 5us", 5, "what changes is"),
            ("10s delay 5ms 6ms", 15, "nothing follows"),
        ] {
            let error = text.parse::<Change>().unwrap_err();
            assert_eq!(error.place, place, "{error}");
            assert!(error.why.contains(part), "{error}");
        }
    }

    #[test]
    fn what_a_link_cannot_be_is_refused() {
        let refused = |changes: Vec<Change>, config: LinkConfig| {
            Link::new(LinkConfig { changes, ..config }).map(drop).unwrap_err()
        };
        let plain = LinkConfig::default;
        let error = refused(vec![change("5s rate 1G")], plain());
        assert!(
            matches!(error, LinkError::Change { .. }) && error.to_string().contains("5s rate 1G")
        );
        let error =
            refused(vec![Change { to: Setting::Loss(f64::NAN), ..change("1s cut") }], plain());
        assert!(matches!(error, LinkError::Change { .. }));
        let bursts = Some(Bursts { frames: 2.0, loss: 0.5 });
        let error = refused(vec![change("1s loss 0.5")], LinkConfig { bursts, ..plain() });
        assert!(error.to_string().contains("bursts of that length"));
        let error = refused(vec![change("1s cut"); 257], plain());
        assert!(matches!(error, LinkError::TooMany { what: "changes", count: 257, most: 256 }));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "([0-9]{1,4}(\\.[0-9])?(us|ms|s)?-?){1,2} (cut|loss|rate|delay|distance)( \
                     [0-9e.-]{1,4}(us|km|G|%)?)?",
        ) {
            if let Ok(change) = text.parse::<Change>() {
                prop_assert_eq!(change.to_string().parse::<Change>(), Ok(change), "{}", text);
            }
        }

        /// Whatever changes, frames that are not late arrive in order, and none before the shortest
        /// delay.
        #[test]
        fn order_holds_whatever_changes(
            changes in
                prop::collection::vec((0_u64..1000, 1_u64..400, 0_u64..3, 1_u64..500), 0..10),
            gaps in prop::collection::vec(0_u64..30, 1..200),
        ) {
            let changes: Vec<Change> = changes
                .into_iter()
                .map(|(at, lasts, kind, value)| Change {
                    at: Instant::ZERO + Duration::from_us(at),
                    lasts: Some(Duration::from_us(lasts)),
                    to: match kind {
                        0 => Setting::Delay(Duration::from_us(value)),
                        1 => Setting::Rate(BitRate::from_bps(value * 10_000_000).unwrap()),
                        _ => Setting::Loss(value as f64 / 500.0),
                    },
                })
                .collect();
            let config =
                LinkConfig { changes, ..LinkConfig::fibre_km(10, BitRate::from_gbps(1).unwrap()) };
            let mut run = Run::new(&config, 0);
            let mut last = Instant::ZERO;
            for gap in gaps {
                run.wait(Duration::from_us(gap));
                if let Ok(arrival) = run.send(&WRITE) {
                    prop_assert!(
                        arrival.due >= last && arrival.due >= run.now + config.delay_min()
                    );
                    last = arrival.due;
                }
            }
        }
    }
}
