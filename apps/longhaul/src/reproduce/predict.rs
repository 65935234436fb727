//! Converts a scenario of the simulator for the planner.

use crate::problem::Problem;
use longhaul_planner::{
    Accelerator, End, Migration, NicProfile, Op, Path, Prediction, Storage, Workload,
};
use longhaul_sim::{Flow, Scenario, StationKind, Test, Until, perftest_cq_mod};

/// Values of a prediction, by name.
pub struct Predicted {
    pub values: Vec<(&'static str, f64)>,
    pub note: String,
}

/// Predicts the scenario's first flow, between two hosts with at most accelerators in between.
pub fn predict(scenario: &Scenario) -> Result<Predicted, Problem> {
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
    if let (Some(_), Test::Storage { .. } | Test::Migration { .. }) = (a_box, flow.test) {
        return Err(Problem::plain("storage and migration through boxes are not predicted"));
    }
    let prediction = if let Test::Migration { migration, timeout, .. } = flow.test {
        let timeout_ns = timeout.as_ps() as f64 / 1e3;
        return migrated(&planned_migration(&migration, timeout_ns), &path, &nic, &workload);
    } else if let Test::Storage { storage, .. } = flow.test {
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
    let prediction = prediction.map_err(|error| Problem::plain(error.to_string()))?;
    Ok(Predicted {
        values: vec![
            ("goodput_bps", prediction.goodput_bps),
            ("latency_ns", prediction.latency_ns),
        ],
        note: format!("limit: {}", prediction.limit),
    })
}

fn migrated(
    migration: &Migration,
    path: &Path,
    nic: &NicProfile,
    workload: &Workload,
) -> Result<Predicted, Problem> {
    let migrated = migration.predict(path, nic, workload);
    let migrated = migrated.map_err(|error| Problem::plain(error.to_string()))?;
    let mut values = vec![("finished_percent", 0.0)];
    let note = match migrated.end {
        End::Arrival => {
            values = vec![
                ("finished_percent", 100.0),
                ("total_s", migrated.total_ns() / 1e9),
                ("downtime_ms", migrated.downtime_ns / 1e6),
            ];
            format!("passes: {}", migrated.passes)
        }
        End::TooSlow => format!("would take {:.0} s", migrated.total_ns() / 1e9),
        End::Diverges => "diverges".to_owned(),
    };
    Ok(Predicted { values, note })
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

fn planned_migration(migration: &longhaul_sim::Migration, timeout_ns: f64) -> Migration {
    let ns = |time: longhaul_units::Duration| time.as_ps() as f64 / 1e3;
    let bps = |rate: Option<longhaul_units::BitRate>| {
        rate.map_or(f64::INFINITY, |rate| rate.as_bps() as f64)
    };
    Migration {
        setup_ns: ns(migration.setup),
        disk_bytes: migration.disk_bytes as f64,
        disk_bps: bps(migration.disk_rate),
        memory_bytes: migration.memory_bytes as f64,
        memory_bps: bps(migration.memory_rate),
        working_set_bytes: migration.writes.map_or(0.0, |writes| writes.bytes as f64),
        dirty_bps: bps(migration.writes.map(|writes| writes.rate)),
        dirty_pause_ns: migration.writes.map_or(0.0, |writes| ns(writes.pause)),
        downtime_limit_ns: ns(migration.downtime_limit),
        timeout_ns,
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
        Test::Storage { depth, .. } | Test::Migration { depth, .. } => (depth, 1, None),
    };
    Workload { op, size: size.into(), qps: flow.qps, tx_depth, cq_mod, iterations }
}
