//! Results of a measurement, as figures by name.

use super::cell::{Cell, Over, Setup};
use super::parts::Parts;
use crate::{Figures, Machine};
use longhaul_datapath::{Counts, Measured, StageCost};
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
    cell: Cell,
    setup: Setup,
    over: Over,
    measured: Measured,
    load_alone_pps: Option<f64>,
    /// Event counts of the load alone, and their number of packets.
    load_alone_counts: Option<(Counts, u64)>,
    /// Processor time of a box in another process, in nanoseconds.
    box_used_ns: Option<u64>,
    testpmd_pps: Option<f64>,
    parts: Option<Parts>,
}

impl Outcome {
    /// Creates the results without comparisons.
    pub(super) fn new(cell: &Cell, setup: &Setup, over: Over, measured: Measured) -> Self {
        Outcome {
            cell: *cell,
            setup: setup.clone(),
            over,
            measured,
            load_alone_pps: None,
            load_alone_counts: None,
            box_used_ns: None,
            testpmd_pps: None,
            parts: None,
        }
    }

    /// Adds the results of the load alone.
    pub(super) fn with_load_alone(self, alone: &Measured) -> Self {
        Outcome {
            load_alone_pps: Some(alone.packets_per_s()),
            load_alone_counts: alone.counts.map(|counts| (counts, alone.counters.arrived)),
            ..self
        }
    }

    /// Adds the processor time of a box in another process, in nanoseconds.
    pub(super) fn of_box(self, box_used_ns: Option<u64>) -> Self {
        Outcome { box_used_ns, ..self }
    }

    /// Adds the results of testpmd.
    pub(super) fn beside_testpmd(self, theirs: &Measured) -> Self {
        Outcome { testpmd_pps: Some(theirs.packets_per_s()), ..self }
    }

    /// Measures the parts of paired boxes; `plain` are boxes without parity and keys.
    pub(super) fn with_parts(self, plain: &Measured) -> Self {
        Outcome { parts: Some(Parts::measure(&self.measured, plain, &self.setup)), ..self }
    }

    /// Settings of the boxes.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Connection of load and box.
    pub fn over(&self) -> Over {
        self.over
    }

    /// What load and stages did.
    pub fn measured(&self) -> &Measured {
        &self.measured
    }

    /// Packets per second of the load alone.
    pub fn load_alone_pps(&self) -> Option<f64> {
        self.load_alone_pps
    }

    /// Packets per second of testpmd with the same load.
    pub fn testpmd_pps(&self) -> Option<f64> {
        self.testpmd_pps
    }

    /// Costs of the parts of paired boxes.
    pub fn parts(&self) -> Option<&Parts> {
        self.parts.as_ref()
    }

    /// The box's ticks per packet.
    pub fn box_ticks(&self, machine: &Machine) -> Option<f64> {
        let arrived = self.measured.counters.arrived;
        let used = self.box_used_ns.filter(|_| arrived > 0);
        let of_process = used.map(|ns| ns as f64 * 1e-9 * machine.ticks_per_s() / arrived as f64);
        of_process.or_else(|| self.measured.box_ticks_per_packet())
    }

    /// Packets per second of the box with a processor to itself.
    pub fn box_pps(&self, machine: &Machine) -> Option<f64> {
        self.box_ticks(machine)
            .filter(|ticks| *ticks > 0.0)
            .map(|ticks| machine.ticks_per_s() / ticks)
    }

    /// Dropped frames, by stage and reason.
    pub fn drops(&self) -> BTreeMap<String, u64> {
        let of_stage = |stage: &StageCost| {
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

    /// The box's instructions and cache misses per packet: the total less the load's own.
    pub fn counted(&self) -> Option<[f64; 2]> {
        let (all, (alone, packets)) = (self.measured.counts?, self.load_alone_counts?);
        let arrived = self.measured.counters.arrived.max(1) as f64;
        let own =
            |all: u64, alone: u64| all as f64 / arrived - alone as f64 / packets.max(1) as f64;
        Some([own(all.instructions, alone.instructions), own(all.cache_misses, alone.cache_misses)])
    }
}

impl Figures for Outcome {
    type Cell = Cell;

    fn cell(&self) -> &Cell {
        &self.cell
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
}

#[cfg(test)]
mod tests {
    use super::super::between;
    use super::super::cell::BoxKind;
    use super::*;
    use longhaul_boxes::quantity::Distance;
    use longhaul_datapath::{LoadConfig, Plan};
    use longhaul_units::{BitRate, Duration as Span};
    use longhaul_wan::Parity;
    use std::time::Duration;

    fn outcome() -> Outcome {
        let cell = Cell {
            kind: BoxKind::Forward,
            payload_bytes: 64,
            flows: 3,
            distance: Distance::from_km(0),
        };
        let rate = BitRate::from_gbps(10).unwrap();
        let setup = Setup { rate, parity: Parity::Off, loss: 0.0, is_encrypted: false };
        let plan = Plan {
            warm_up: Duration::ZERO,
            lasts: Duration::from_secs(10),
            packets_max: Some(2000),
            ack_delay: Span::ZERO,
        };
        let load = LoadConfig { flows: 3, ..LoadConfig::new(64) };
        let mut row = between::row(&cell, &setup, load, false).unwrap();
        row.pair().unwrap();
        Outcome::new(&cell, &setup, Over::Rings, row.measure(&plan, |_| true).unwrap())
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
        let machine = Machine::with_ticks_per_s(1e9);
        let mut outcome = outcome();
        outcome.testpmd_pps = Some(1e6);
        let values = outcome.values(&machine);
        assert!(values.values().all(|value| value.is_finite()), "{values:?}");
        let cycles = values["box_cycles_per_packet"];
        assert!((values["box_packets_per_s"] * cycles / 1e9 - 1.0).abs() < 1e-9);
        assert!((values["to_testpmd_ratio"] - values["packets_per_s"] / 1e6).abs() < 1e-9);
    }
}
