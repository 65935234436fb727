//! Networks that tests use.
#![allow(dead_code, reason = "each test uses its part")]

use longhaul_accel::Pacing;
use longhaul_sim::*;
use longhaul_units::{BitRate, Duration};

pub fn gbps(rate: u64) -> BitRate {
    BitRate::from_gbps(rate).unwrap()
}

fn host(name: &str, profile: &NicProfile) -> StationPlan {
    StationPlan { name: name.into(), kind: StationKind::Host(profile.clone()) }
}

/// Two hosts with NICs of `profile` at the ends of a fibre that loses frames of the first.
pub fn pair(profile: &NicProfile, one_way: Duration, loss: f64) -> Scenario {
    let mut cable =
        Cable::long([(0, 0), (1, 0)], BitRate::from_bps(profile.rate_bps).unwrap(), one_way);
    cable.wire.loss = loss;
    cable.loss_toward_second_only = true;
    Scenario {
        seed: 1,
        stations: vec![host("a", profile), host("b", profile)],
        cables: vec![cable],
        ..Scenario::default()
    }
}

/// The same with an accelerator at each end of the fibre.
pub fn accelerated_pair(profile: &NicProfile, one_way: Duration, loss: f64) -> Scenario {
    let rate = BitRate::from_bps(profile.rate_bps).unwrap();
    let config = AcceleratorConfig {
        wan_pacing: Pacing::Own(rate),
        lan_pacing: Pacing::Own(rate),
        flow_bytes_max: 4 << 30,
        total_bytes_max: 8 << 30,
        ack_window_bytes: 2 << 30,
        ..AcceleratorConfig::default()
    };
    let accelerator = |name: &str| StationPlan {
        name: name.into(),
        kind: StationKind::Box(Box::new(BoxConfig::alone(config.clone()))),
    };
    let mut fibre = Cable::long([(2, 1), (3, 1)], rate, one_way);
    fibre.wire.loss = loss;
    Scenario {
        seed: 1,
        stations: vec![
            host("a", profile),
            host("b", profile),
            accelerator("near"),
            accelerator("far"),
        ],
        cables: vec![
            Cable::short([(0, 0), (2, 0)], rate),
            fibre,
            Cable::short([(1, 0), (3, 0)], rate),
        ],
        ..Scenario::default()
    }
}

pub fn flow(op: Op, message_bytes: u32, qps: u32, test: Test) -> Flow {
    Flow {
        name: format!("{} {message_bytes} B", op.name()),
        from: 0,
        to: 1,
        op,
        message_bytes,
        transport: Transport::Rc,
        dscp: Flow::ROCE_DSCP,
        events: Events::Off,
        qps,
        mtu: Mtu::B4096,
        test,
        starts_at: Duration::ZERO,
        connect: Connect::OutOfBand,
    }
}

pub fn bandwidth(tx_depth: u32, iterations: u64) -> Test {
    Test::Bandwidth {
        tx_depth,
        rx_depth: 512,
        post_list: 1,
        cq_mod: None,
        until: Until::Iterations(iterations),
    }
}

pub fn run_on(scenario: Scenario, threads: usize) -> Outcome {
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(threads, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new());
    assert_eq!(outcome.unfinished, None);
    assert_eq!(outcome.flows.iter().filter_map(|flow| flow.failure.as_ref()).next(), None);
    outcome
}

pub fn run(scenario: Scenario) -> Outcome {
    run_on(scenario, 1)
}

pub fn goodput_gbps(outcome: &Outcome) -> f64 {
    outcome.flows[0].goodput_bps / 1e9
}
