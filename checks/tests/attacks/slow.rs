//! Slow receivers and slow paths.

use crate::attacker::{Power, shared};
use crate::fleet::plan::Mix;
use crate::stage::{BOTH, Stage, boxes, setup};
use longhaul_units::{Duration, Rng, SplitMix64};

/// Maximum bytes in the stores of a site's accelerators, for all flows.
const STORE: u64 = 512 << 10;

/// A responder posts each receive 4 ms late, while requesters have far more to send than a box may
/// store.
#[test]
fn a_responder_that_is_never_ready_costs_bounded_memory_and_no_flow() {
    for keys in BOTH {
        let mut setup = setup(1, boxes(keys));
        (setup.receives, setup.receive_delay) = (1, Duration::from_ms(4));
        (setup.mix, setup.messages, setup.size_max) = (Mix::SendsAndWrites, 24, 96 << 10);
        setup.depth = 16;
        setup.limits.accelerator = |config| {
            (config.total_bytes_max, config.flow_bytes_max) = (STORE, STORE);
            config.ack_window_bytes = STORE / 2;
        };
        let mut stage = Stage::new(&setup, Power::Send);
        let mut most = 0;
        let outcome = stage.attacked(|stage| {
            for one in stage.fleet.accelerators() {
                most = most.max(one.flows().map(|flow| flow.stored_bytes).sum());
            }
        });
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        assert!((STORE / 4..=STORE + (64 << 10) * 8).contains(&most), "{most} bytes");
        let all = stage.fleet.accelerators();
        let absorbed = all.iter().map(|one| one.counters().rnr_nak_absorbed).sum::<u64>();
        assert!(absorbed > 50, "{absorbed}");
    }
}

/// An attacker lets so little pass that everything waits.
#[test]
fn a_path_that_hardly_carries_anything_costs_bounded_memory_and_no_byte() {
    for keys in BOTH {
        let mut rng = SplitMix64::new(9);
        let lost = shared(0_u64);
        let count = lost.clone();
        let power = Power::Drop(Box::new(move |_, _| {
            let is_lost = rng.chance(0.3);
            *count.borrow_mut() += u64::from(is_lost);
            is_lost
        }));
        let mut setup = setup(2, boxes(keys));
        setup.nic.timeout = 18;
        setup.limits.seal = |seal| seal.ask_every = Duration::from_ms(20);
        let mut stage = Stage::new(&setup, power);
        let outcome = stage.attacked(|_| {});
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        assert!(*lost.borrow() > 1000);
        assert!((0..2).all(|site| stage.transport(site).counters().repeated > 100));
    }
}

/// The attacker delays a third of the datagrams by up to 50 ms.
#[test]
fn who_holds_datagrams_back_changes_nothing_but_the_time() {
    for keys in BOTH {
        let mut rng = SplitMix64::new(13);
        let mut held: Vec<(longhaul_units::Instant, crate::attacker::Crossing)> = Vec::new();
        let power = Power::Write(Box::new(move |now, crossing| {
            if rng.chance(0.3) {
                held.push((now + Duration::from_us(rng.below(50_000)), crossing));
                return held.extract_if(.., |(at, _)| *at <= now).map(|(_, late)| late).collect();
            }
            let late = held.extract_if(.., |(at, _)| *at <= now).map(|(_, late)| late);
            late.chain([crossing]).collect()
        }));
        let mut setup = setup(4, boxes(keys));
        setup.nic.timeout = 18;
        let mut stage = Stage::new(&setup, power);
        let outcome = stage.attacked(|_| {});
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        let spurious = (0..2).map(|site| stage.transport(site).counters().spurious);
        assert!(spurious.sum::<u64>() > 0, "{keys:?}");
    }
}
