//! Results of a measurement, as figures by name.

use super::boxes::{Cell, Setup};
use super::parts::Parts;
use super::text;
use crate::bench::machine::Machine;
use crate::bench::reporting;
use longhaul_bench::Point;
use longhaul_datapath::{Counts, Measured};
use longhaul_wan::Parity;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use times::{QUANTILES, quantiles};

/// The percentiles shown of the measured times.
mod times {
    use longhaul_datapath::Measured;

    /// Names, and shares of packets.
    pub const QUANTILES: [(&str, f64); 4] =
        [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

    /// Percentiles of the one-way delay, and of the time to the acknowledgement, in nanoseconds.
    pub fn quantiles(measured: &Measured) -> [[u64; 4]; 2] {
        [&measured.one_way, &measured.acknowledged]
            .map(|times| QUANTILES.map(|(_, part)| times.value_at_quantile(part)))
    }
}

/// Results of one row of the table.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cell: Cell,
    pub setup: Setup,
    pub measured: Measured,
    /// Packets per second of the load alone.
    pub load_alone_pps: Option<f64>,
    /// Event counts of the load alone, and their number of packets.
    pub load_alone_counts: Option<(Counts, u64)>,
    /// Processor time of a box in another process, in nanoseconds.
    pub box_used_ns: Option<u64>,
    /// Packets per second of testpmd with the same load.
    pub testpmd_pps: Option<f64>,
    pub parts: Option<Parts>,
}

impl Outcome {
    /// Creates the results without comparisons.
    pub fn new(cell: &Cell, setup: &Setup, measured: Measured) -> Self {
        Outcome {
            cell: *cell,
            setup: setup.clone(),
            measured,
            load_alone_pps: None,
            load_alone_counts: None,
            box_used_ns: None,
            testpmd_pps: None,
            parts: None,
        }
    }

    /// The box's ticks per packet.
    pub fn box_ticks(&self, machine: &Machine) -> Option<f64> {
        let arrived = self.measured.counters.arrived;
        let used = self.box_used_ns.filter(|_| arrived > 0);
        let of_process = used.map(|ns| ns as f64 * 1e-9 * machine.ticks_per_s / arrived as f64);
        of_process.or_else(|| self.measured.box_ticks_per_packet())
    }

    /// Packets per second of the box with a processor to itself.
    pub fn box_pps(&self, machine: &Machine) -> Option<f64> {
        self.box_ticks(machine)
            .filter(|ticks| *ticks > 0.0)
            .map(|ticks| machine.ticks_per_s / ticks)
    }

    /// Dropped frames, by stage and reason.
    pub fn drops(&self) -> BTreeMap<String, u64> {
        let of_stage = |stage: &longhaul_datapath::StageCost| {
            let name = stage.name;
            stage
                .seen
                .drops
                .iter()
                .map(move |(reason, count)| (format!("{name}.{reason}"), *count))
                .collect::<Vec<_>>()
        };
        self.measured.stages.iter().flat_map(of_stage).collect()
    }

    /// The medium between load and box.
    pub fn over(&self) -> &'static str {
        match (self.box_used_ns, self.setup.copies) {
            (Some(_), _) => "memif",
            (None, true) => "copying-rings",
            (None, false) => "rings",
        }
    }

    /// The box's instructions and cache misses per packet: the total less the load's own.
    pub fn counted(&self) -> Option<[f64; 2]> {
        let (all, (alone, packets)) = (self.measured.counts?, self.load_alone_counts?);
        let arrived = self.measured.counters.arrived.max(1) as f64;
        let own =
            |all: u64, alone: u64| all as f64 / arrived - alone as f64 / packets.max(1) as f64;
        Some([own(all.instructions, alone.instructions), own(all.cache_misses, alone.cache_misses)])
    }
}

impl reporting::Outcome for Outcome {
    type Cell = Cell;
    const WHAT: &'static str = "datapath";

    fn cell(&self) -> &Cell {
        &self.cell
    }

    fn point(&self) -> Point {
        let cell = &self.cell;
        let parity = match self.setup.parity {
            Parity::Off => "off",
            Parity::Adaptive => "adaptive",
            Parity::Always => "always",
        };
        let point = Point::new()
            .with("box", cell.kind.name())
            .with("payload_bytes", cell.payload_bytes as u64)
            .with("qps", cell.flows)
            .with("distance_km", cell.distance.km())
            .with("over", self.over());
        if cell.kind != super::BoxKind::Paired {
            return point;
        }
        point
            .with("parity", parity)
            .with("is_encrypted", self.setup.is_encrypted)
            .with("loss", self.setup.loss)
    }

    fn values(&self, machine: &Machine) -> BTreeMap<String, f64> {
        let measured = &self.measured;
        let packets = measured.counters.arrived.max(1) as f64;
        let mut values = BTreeMap::from([
            ("packets_per_s".to_owned(), measured.packets_per_s()),
            ("goodput_bps".to_owned(), measured.goodput_bps()),
            ("processor_share".to_owned(), measured.processor_share()),
            ("lost_packets".to_owned(), measured.lost as f64),
            ("dropped_frames".to_owned(), self.drops().values().sum::<u64>() as f64),
            ("acks_per_packet".to_owned(), measured.counters.acks_taken as f64 / packets),
            ("resident_bytes".to_owned(), measured.resident_bytes[1] as f64),
            ("memory_growth_bytes".to_owned(), self.memory_growth() as f64),
        ]);
        let mut put = |name: &str, value: Option<f64>| {
            values.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("box_cycles_per_packet", self.box_ticks(machine));
        put("box_packets_per_s", self.box_pps(machine));
        put(
            "box_goodput_bps",
            self.box_pps(machine).map(|pps| pps * measured.payload_bytes as f64 * 8.0),
        );
        put("load_alone_packets_per_s", self.load_alone_pps);
        put("testpmd_packets_per_s", self.testpmd_pps);
        put("to_testpmd_ratio", self.testpmd_pps.map(|theirs| measured.packets_per_s() / theirs));
        let counted = self.counted();
        put("instructions_per_packet", counted.map(|[instructions, _]| instructions));
        put("cache_misses_per_packet", counted.map(|[_, misses]| misses));
        for stage in measured.stages.iter().filter(|_| measured.stages.len() > 1) {
            put(
                &format!("{}_cycles_per_packet", stage.name),
                Some(measured.ticks_per_packet(stage)),
            );
        }
        if let Some(parts) = &self.parts {
            parts.values().into_iter().for_each(|(name, value)| put(name, Some(value)));
        }
        for (what, times) in ["one_way", "acknowledged"].iter().zip(quantiles(measured)) {
            for ((name, _), ns) in QUANTILES.iter().zip(times) {
                put(&format!("{what}_{name}_ns"), Some(ns as f64));
            }
        }
        values
    }

    fn details(&self) -> Value {
        let stages: Vec<_> = self.measured.stages.iter().map(stage).collect();
        json!({
            "drops": self.drops(),
            "stages": stages,
            "elapsed_s": self.measured.elapsed.as_secs_f64(),
        })
    }

    fn memory_growth(&self) -> u64 {
        let [start, _, most] = self.measured.resident_bytes;
        most - start
    }

    fn faults(&self) -> Vec<String> {
        let (lost, counters) = (self.measured.lost, &self.measured.counters);
        let mut faults = Vec::new();
        if lost > 0 {
            faults.push(format!("{lost} packets did not arrive"));
        }
        if counters.corrupt > 0 {
            faults.push(format!("{} of {} ICRCs were wrong", counters.corrupt, counters.checked));
        }
        if counters.refusals > 0 {
            faults.push(format!("{} refusals of connections", counters.refusals));
        }
        faults
    }

    fn table(machine: &Machine, outcomes: &[Self]) -> String {
        text::render(machine, outcomes)
    }
}

fn stage(cost: &longhaul_datapath::StageCost) -> Value {
    let counts: BTreeMap<_, _> = cost.seen.counts.iter().copied().collect();
    json!({
        "name": cost.name,
        "is_box": cost.is_box,
        "busy_ticks": cost.busy_ticks,
        "idle_ticks": cost.idle_ticks,
        "busy_turns": cost.busy_turns,
        "counts": counts,
    })
}

#[cfg(test)]
mod tests {
    use super::super::boxes::{self, BoxKind};
    use super::*;
    use crate::bench::reporting::Outcome as _;
    use longhaul_boxes::quantity::Distance;
    use longhaul_datapath::{LoadConfig, Plan};
    use longhaul_units::{BitRate, Duration as Span};
    use std::time::Duration;

    fn outcome() -> Outcome {
        let cell = Cell {
            kind: BoxKind::Forward,
            payload_bytes: 64,
            flows: 3,
            distance: Distance::from_km(0),
        };
        let rate = BitRate::from_gbps(10).unwrap();
        let setup =
            Setup { rate, parity: Parity::Off, loss: 0.0, is_encrypted: false, copies: false };
        let plan = Plan {
            warm_up: Duration::ZERO,
            lasts: Duration::from_secs(10),
            packets_max: Some(2000),
            ack_delay: Span::ZERO,
        };
        let mut row =
            boxes::row(&cell, &setup, LoadConfig { flows: 3, ..LoadConfig::new(64) }).unwrap();
        row.pair().unwrap();
        Outcome::new(&cell, &setup, row.measure(&plan, |_| true).unwrap())
    }

    #[test]
    fn what_must_not_be_is_told() {
        let fine = outcome();
        assert_eq!(fine.faults(), Vec::<String>::new());
        let mut bad = fine.clone();
        bad.measured.lost = 7;
        bad.measured.counters.corrupt = 1;
        bad.measured.resident_bytes = [1 << 20, 2 << 20, 5 << 20];
        let faults = bad.faults();
        assert!(
            faults.len() == 2 && faults[0].contains('7') && faults[1].contains("ICRC"),
            "{faults:?}"
        );
        assert_eq!(bad.memory_growth(), 4 << 20);
    }

    #[test]
    fn a_record_has_finite_figures_with_their_units() {
        let machine = Machine {
            processor: "one".into(),
            cores: 1,
            kernel: "x".into(),
            ticks_per_s: 1e9,
            no_counters: None,
        };
        let mut outcome = outcome();
        outcome.testpmd_pps = Some(1e6);
        let values = outcome.record(&machine).values;
        assert!(values.values().all(|value| value.is_finite()), "{values:?}");
        let cycles = values["box_cycles_per_packet"];
        assert!((values["box_packets_per_s"] * cycles / 1e9 - 1.0).abs() < 1e-9);
        assert!((values["to_testpmd_ratio"] - values["packets_per_s"] / 1e6).abs() < 1e-9);
    }
}
