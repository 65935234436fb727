//! Converts a scenario of the simulator for the planner.

use crate::problem::Problem;
use longhaul_planner::{Accelerator, NicProfile, Op, Path, Prediction, Storage, Workload};
use longhaul_sim::{Flow, Scenario, StationKind, Test, Until, perftest_cq_mod};

/// Predicts the scenario's first flow, between two hosts with at most accelerators in between.
pub fn predict(scenario: &Scenario) -> Result<Prediction, Problem> {
    let flow = scenario.flows.first().ok_or_else(|| Problem::plain("a scenario without flows"))?;
    let StationKind::Host(profile) = &scenario.stations[flow.from].kind else {
        return Err(Problem::plain("a flow that begins at no host"));
    };
    let nic = planned(profile)?;
    let path = path(scenario, flow);
    let workload = workload(flow);
    let a_box = scenario.stations.iter().find_map(|station| match &station.kind {
        StationKind::Box(config) => Some(config),
        _ => None,
    });
    let prediction = if let Test::Storage { storage, .. } = flow.test {
        if a_box.is_some() {
            return Err(Problem::plain("storage through boxes is not predicted"));
        }
        planned_storage(&storage).predict(&path, &nic, &workload)
    } else if let Some(config) = a_box {
        // The LAN delay is in the scenario's cables; the box itself takes no time in the simulator.
        let lan: f64 = scenario
            .cables
            .iter()
            .filter(|cable| cable.ends.iter().any(|end| end.0 == flow.from))
            .map(|cable| cable.wire.delay.as_ps() as f64 / 1e3)
            .sum();
        let accelerator = Accelerator { lan_rtt_ns: 2.0 * lan, packet_ns: 0.0 };
        match config.whole {
            None => accelerator.predict(&path, &nic, &workload),
            Some(_) => accelerator.predict_transport(&path, &nic, &workload),
        }
    } else {
        Prediction::new(&path, &nic, &workload)
    };
    prediction.map_err(|error| Problem::plain(error.to_string()))
}

/// The same profile in the planner's type, which shares the file format but no code.
fn planned(profile: &longhaul_sim::NicProfile) -> Result<NicProfile, Problem> {
    let text = toml::to_string(profile).map_err(|error| Problem::plain(error.to_string()))?;
    NicProfile::read(&text).map_err(|error| Problem::plain(error.to_string()))
}

fn planned_storage(storage: &longhaul_sim::Storage) -> Storage {
    Storage {
        in_capsule: storage.in_capsule.into(),
        cores: storage.cores,
        command_ns: storage.command.as_ps() as f64 / 1e3,
        drive_bps: storage.drive_rate.map_or(f64::INFINITY, |rate| rate.as_bps() as f64),
        drive_latency_ns: storage.drive_latency.as_ps() as f64 / 1e3,
    }
}

/// All cables of the scenario in series.
fn path(scenario: &Scenario, flow: &Flow) -> Path {
    let delays_ps: u64 = scenario.cables.iter().map(|cable| cable.wire.delay.as_ps()).sum();
    let rates = scenario.cables.iter().filter_map(|cable| cable.wire.rate);
    let rate_bps = rates.map(|rate| rate.as_bps()).min().unwrap_or(u64::MAX) as f64;
    let passes = scenario.cables.iter().map(|cable| 1.0 - cable.wire.loss);
    Path {
        one_way_ns: delays_ps as f64 / 1e3,
        rate_bps,
        loss: 1.0 - passes.product::<f64>(),
        mtu: flow.mtu.bytes(),
        ipv6: false,
        vlan: false,
    }
}

fn workload(flow: &Flow) -> Workload {
    let op = match flow.op {
        // The planner ignores immediate data: 4 bytes per message.
        longhaul_sim::Op::Write | longhaul_sim::Op::WriteImmediate => Op::Write,
        longhaul_sim::Op::Send => Op::Send,
        longhaul_sim::Op::Read => Op::Read,
        longhaul_sim::Op::Atomic => Op::Atomic,
    };
    let size = flow.message_bytes;
    let (tx_depth, cq_mod, iterations) = match flow.test {
        Test::Bandwidth { tx_depth, post_list, cq_mod, until, .. } => {
            let iterations = match until {
                Until::Iterations(iterations) => Some(iterations),
                Until::Elapsed(_) => None,
            };
            (
                tx_depth,
                cq_mod.unwrap_or_else(|| perftest_cq_mod(size, tx_depth, post_list)),
                iterations,
            )
        }
        Test::Latency { iterations } => (1, 1, Some(iterations)),
        Test::Storage { depth, .. } => (depth, 1, None),
    };
    Workload { op, size: size.into(), qps: flow.qps, tx_depth, cq_mod, iterations }
}
